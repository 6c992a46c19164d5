"""The engines: Holdfast, obstore by itself, and the file system of fsspec."""

from benchmarks.s3.engines import Kind
from benchmarks.s3.holdfast import Holdfast
from benchmarks.s3.peers import Fsspec, Obstore
from benchmarks.s3.works import CONCURRENCY, PART_BYTES, Bucket
from holdfast.locations import AzureSettings, GcsSettings, use_azure, use_gcs


def _holdfast_on_gcs(bucket: Bucket) -> Holdfast:
    settings = GcsSettings(
        endpoint=bucket.endpoint, anonymous=True, part_size=PART_BYTES, concurrency=CONCURRENCY
    )
    use_gcs(settings, bucket.name)
    return Holdfast(f"gs://{bucket.name}")


def _obstore_on_gcs(bucket: Bucket) -> Obstore:
    # With the option that Holdfast sets for servers without tokens.
    return Obstore(GcsSettings(endpoint=bucket.endpoint, anonymous=True).open_store(bucket.name))


def _gcsfs(bucket: Bucket) -> Fsspec:
    import gcsfs  # noqa: PLC0415  # optional

    file_system = gcsfs.core.GCSFileSystem(
        token="anon",  # noqa: S106  # not a secret
        project="benchmark",
        endpoint_url=bucket.endpoint,
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    return Fsspec(file_system, bucket)


def _holdfast_on_azure(bucket: Bucket) -> Holdfast:
    settings = AzureSettings(
        endpoint=bucket.endpoint,
        account=bucket.access_key,
        secret_key=bucket.secret_key,
        part_size=PART_BYTES,
        concurrency=CONCURRENCY,
    )
    use_azure(settings, bucket.name)
    return Holdfast(f"az://{bucket.name}")


def _obstore_on_azure(bucket: Bucket) -> Obstore:
    from obstore.store import AzureStore  # noqa: PLC0415  # optional

    store = AzureStore(
        bucket.name,
        account_name=bucket.access_key,
        account_key=bucket.secret_key,
        endpoint=bucket.endpoint,
        client_options={"allow_http": True},
    )
    return Obstore(store)


def _adlfs(bucket: Bucket) -> Fsspec:
    import adlfs  # noqa: PLC0415  # optional

    connection = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": bucket.access_key,
        "AccountKey": bucket.secret_key,
        "BlobEndpoint": bucket.endpoint,
    }
    file_system = adlfs.AzureBlobFileSystem(
        connection_string=";".join(f"{name}={value}" for name, value in connection.items()),
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    return Fsspec(file_system, bucket)


KINDS = {
    "gcs": {
        "holdfast": Kind("Holdfast", ["obstore"], _holdfast_on_gcs),
        "obstore": Kind("obstore", ["obstore"], _obstore_on_gcs),
        "gcsfs": Kind("gcsfs", ["gcsfs"], _gcsfs),
    },
    "azure": {
        "holdfast": Kind("Holdfast", ["obstore"], _holdfast_on_azure),
        "obstore": Kind("obstore", ["obstore"], _obstore_on_azure),
        "adlfs": Kind("adlfs", ["adlfs"], _adlfs),
    },
}
"""By cloud and name; ratios are to the first one."""

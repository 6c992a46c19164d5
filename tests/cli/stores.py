"""Stores that commands reach only by their options."""

from servers.s3 import S3Bucket, settings_of

from holdfast.locations import use_s3


def options_for(bucket: S3Bucket) -> list[str]:
    """Return options with which a command reaches a bucket; afterwards nothing else in this process reaches it."""
    server = bucket.server
    use_s3(settings_of(server, endpoint="http://127.0.0.1:9"), bucket.name)
    settings = {
        "endpoint": server.endpoint,
        "endpoint.region": server.region,
        "path.style.access": "true",
        "access.key": server.access_key,
        "secret.key": server.secret_key,
    }
    return [f"--conf=spark.hadoop.fs.s3a.{key}={value}" for key, value in settings.items()]

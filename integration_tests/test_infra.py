"""The commands of `infra/` that no other test calls."""

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from servers import infra
from servers.s3 import S3Server, moto_server


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        server.client().create_bucket(Bucket="bucket")
        yield server


def put(server: S3Server, endpoint: str, key: str) -> None:
    server.client(endpoint).put_object(Bucket="bucket", Key=key, Body=b"")


class TestFaults:
    def test_requests_fail_as_planned(self, moto: S3Server) -> None:
        with infra.running("faults", moto.endpoint, "slow-down:PutObject:every-2") as known:
            endpoint = known["endpoint"]
            put(moto, endpoint, "1")
            with pytest.raises(ClientError, match="SlowDown"):
                put(moto, endpoint, "2")
            put(moto, endpoint, "3")
            moto.client(endpoint).get_object(Bucket="bucket", Key="3")

            faults = ("lose-answer:PutObject:2-3", "reset:GetObject", "delay=0:any")
            infra.run("faults", "plan", known["directory"], *faults)
            put(moto, endpoint, "4")
            for key in ("5", "6"):
                with pytest.raises(ConnectionClosedError):
                    put(moto, endpoint, key)
            put(moto, endpoint, "7")
            with pytest.raises(ConnectionClosedError):
                moto.client(endpoint).get_object(Bucket="bucket", Key="3")

            infra.run("faults", "plan", known["directory"])
            moto.client(endpoint).get_object(Bucket="bucket", Key="3")
        stored = moto.client().list_objects_v2(Bucket="bucket")["Contents"]
        assert [entry["Key"] for entry in stored] == ["1", "3", "4", "5", "6", "7"]

    @pytest.mark.parametrize(
        ("fault", "complaint"),
        [
            ("slow", "not a fault: slow"),
            ("slow-down:PutObject:0", "not a fault"),
            ("reset:any:3-2", "ends before it begins"),
            ("reset:PutObjekt", "operation must be one of"),
        ],
    )
    def test_invalid_fault_is_refused(self, fault: str, complaint: str) -> None:
        refused = infra.call("faults", "start", "http://127.0.0.1:9", fault)
        assert refused.returncode == 2
        assert complaint in refused.stderr
        assert "usage:" in refused.stderr

    def test_invalid_server_is_refused(self) -> None:
        refused = infra.call("faults", "start", "https://127.0.0.1:9")
        assert refused.returncode == 1
        assert "must be http://host:port" in refused.stderr


@pytest.mark.parametrize("kind", ["azure", "faults", "gcs", "hdfs", "kafka", "s3", "spark", "yarn"])
def test_stop_refuses_a_directory_not_made_by_start(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("mine")
    refused = infra.call(kind, "stop", str(directory))
    assert refused.returncode == 1
    assert "not a directory that start has printed" in refused.stderr
    assert directory.exists()

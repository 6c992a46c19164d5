"""The bucket of `infra/aws`: its policies are enough for its roles, and none of it is too much."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from contracts.bucket_roles import PART, drive, execute
from servers.aws import Account, Policy, actions_of, without
from servers.s3 import S3Bucket

from holdfast.errors import CheckpointError
from holdfast.locations import S3Settings, use_s3
from holdfast.locations.adapters import RetryPolicy

TEMPLATE = Path(__file__).parents[2] / "infra" / "aws" / "checkpoint-bucket.yaml"

PREFIX = "team/checkpoints"

DRIVER = [
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListBucket",
    "s3:ListBucketMultipartUploads",
]

EXECUTORS = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]


@dataclass(frozen=True, slots=True)
class Deployed:
    """The bucket, and its roles.

    Attributes:
        bucket: Looked at with all permissions.
        policies: Documents of `Driver` and `Executor`.
        outputs: What the stack says of itself.
        settings: How somebody reaches S3 who may do what a document says.
        client: A client of boto3 by such settings.
    """

    bucket: S3Bucket
    policies: dict[str, Policy]
    outputs: dict[str, str]
    settings: Callable[[Policy], S3Settings]
    client: Callable[[S3Settings], Any]

    @property
    def directory(self) -> str:
        """The checkpoint directory."""
        return f"s3://{self.bucket.name}/{PREFIX}"

    def become(self, who: str, lacking: str = "") -> None:
        """Be the driver or an executor from now on, without one of its permissions."""
        policy = self.policies[who]
        settings = self.settings(without(policy, lacking) if lacking else policy)
        use_s3(
            replace(settings, part_size=PART),
            self.bucket.name,
            retries=RetryPolicy(deadline_s=0),
        )


def deploy(account: Account, **parameters: str) -> Deployed:
    """Make a stack, and wait until it is there."""
    name = f"bucket-{uuid.uuid4().hex}"
    outputs = account.deploy(
        TEMPLATE.read_text(), name, BucketName=name, Prefix=PREFIX, **parameters
    )
    assert outputs["CheckpointDirectory"] == f"s3://{name}/{PREFIX}"
    policies = {who: account.policy(outputs[f"{who}PolicyArn"]) for who in ("Driver", "Executor")}

    def settings(policy: Policy) -> S3Settings:
        for who, document in policies.items():
            # To moto the account's root, whom the roles trust, is none of its users.
            if policy == document and account.server.name != "moto":
                return account.settings(outputs[f"{who}RoleArn"])
        return account.settings(account.role(f"role-{uuid.uuid4().hex}", policy))

    return Deployed(
        account.bucket(name),
        policies,
        outputs,
        settings,
        lambda settings: account.client("s3", settings),
    )


class CheckpointBucketContract:
    """Subclass it where policies are heeded; provide the fixture `deployment`.

    Attributes:
        UNSEEN: Permissions whose lack can't be seen there.
    """

    UNSEEN: frozenset[str] = frozenset()

    @pytest.fixture
    def directory(self, deployment: Deployed) -> Iterator[str]:
        """A checkpoint directory in the bucket, emptied again."""
        yield deployment.directory
        bucket = deployment.bucket
        for key, upload in bucket.uploads():
            bucket.client.abort_multipart_upload(Bucket=bucket.name, Key=key, UploadId=upload)
        for key in bucket.keys():  # noqa: SIM118  # a bucket is no dict
            bucket.client.delete_object(Bucket=bucket.name, Key=key)

    def test_the_policies_allow_this_and_nothing_else(self, deployment: Deployed) -> None:
        assert actions_of(deployment.policies["Driver"]) == DRIVER
        assert actions_of(deployment.policies["Executor"]) == EXECUTORS

    def test_a_driver_may_do_all_that_it_does(self, deployment: Deployed, directory: str) -> None:
        deployment.become("Driver")
        drive(directory, deployment.bucket)

    def test_a_task_may_do_all_that_it_does(self, deployment: Deployed, directory: str) -> None:
        deployment.become("Executor")
        execute(directory, deployment.bucket)

    @pytest.mark.parametrize("action", DRIVER)
    def test_a_driver_needs_each_permission(
        self, deployment: Deployed, directory: str, action: str
    ) -> None:
        self._skip_unseen(action)
        deployment.become("Driver", lacking=action)
        with pytest.raises((CheckpointError, AssertionError)):
            drive(directory, deployment.bucket)

    @pytest.mark.parametrize("action", EXECUTORS)
    def test_a_task_needs_each_permission(
        self, deployment: Deployed, directory: str, action: str
    ) -> None:
        self._skip_unseen(action)
        deployment.become("Executor", lacking=action)
        with pytest.raises((CheckpointError, AssertionError)):
            execute(directory, deployment.bucket)

    @pytest.mark.parametrize("key", ["job/chk-1/_metadata", "job/_epoch/7"])
    @pytest.mark.parametrize("condition", [{}, {"IfNoneMatch": "*"}])
    def test_a_task_can_neither_commit_nor_claim(
        self, deployment: Deployed, directory: str, key: str, condition: dict[str, str]
    ) -> None:
        client = deployment.client(deployment.settings(deployment.policies["Executor"]))
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(
                Bucket=deployment.bucket.name, Key=f"{PREFIX}/{key}", Body=b"", **condition
            )
        assert not deployment.bucket.keys()

    def test_a_task_can_neither_list_nor_delete(self, deployment: Deployed, directory: str) -> None:
        bucket, key = deployment.bucket, f"{PREFIX}/job/chk-1/state"
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=b"")
        client = deployment.client(deployment.settings(deployment.policies["Executor"]))
        for call, parameters in (
            ("list_objects_v2", {"Prefix": PREFIX}),
            ("list_multipart_uploads", {"Prefix": PREFIX}),
            ("delete_object", {"Key": key}),
        ):
            with pytest.raises(ClientError, match="AccessDenied"):
                getattr(client, call)(Bucket=bucket.name, **parameters)
        assert bucket.keys() == [key]

    @pytest.mark.parametrize("who", ["Driver", "Executor"])
    def test_nobody_gets_at_anything_beside_the_checkpoints(
        self, deployment: Deployed, directory: str, who: str
    ) -> None:
        bucket = deployment.bucket
        bucket.client.put_object(Bucket=bucket.name, Key="team/other", Body=b"")
        client = deployment.client(deployment.settings(deployment.policies[who]))
        for call, parameters in (
            ("get_object", {}),
            ("put_object", {"Body": b"mine"}),
            ("delete_object", {}),
            ("create_multipart_upload", {}),
        ):
            with pytest.raises(ClientError, match="AccessDenied"):
                getattr(client, call)(Bucket=bucket.name, Key="team/other", **parameters)
        assert bucket.read("team/other") == b""

    def _skip_unseen(self, action: str) -> None:
        if action in self.UNSEEN:
            pytest.skip(f"the lack of {action} can't be seen here")

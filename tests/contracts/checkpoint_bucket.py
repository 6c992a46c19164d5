"""The bucket of `infra/aws`: its policies are sufficient for its roles, and minimal."""

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
        bucket: The bucket, accessed with all permissions.
        policies: Documents of `Driver` and `Executor`.
        outputs: Outputs of the stack.
        settings: Returns settings for a user with a policy.
        client: Returns a client of boto3 with such settings.
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

    def become(self, role: str, lacking: str = "") -> None:
        """Access S3 as the driver or an executor from now on, without one of its permissions."""
        policy = self.policies[role]
        settings = self.settings(without(policy, lacking) if lacking else policy)
        use_s3(
            replace(settings, part_size=PART),
            self.bucket.name,
            retries=RetryPolicy(deadline_s=0),
        )


def deploy(account: Account, **parameters: str) -> Deployed:
    """Create a stack, and wait until it is complete."""
    name = f"bucket-{uuid.uuid4().hex}"
    outputs = account.deploy(
        TEMPLATE.read_text(), name, BucketName=name, Prefix=PREFIX, **parameters
    )
    assert outputs["CheckpointDirectory"] == f"s3://{name}/{PREFIX}"
    policies = {
        role: account.policy(outputs[f"{role}PolicyArn"]) for role in ("Driver", "Executor")
    }

    def settings(policy: Policy) -> S3Settings:
        for role, document in policies.items():
            # The roles trust the account's root, which is not one of moto's users.
            if policy == document and account.server.name != "moto":
                return account.settings(outputs[f"{role}RoleArn"])
        return account.settings(account.role(f"role-{uuid.uuid4().hex}", policy))

    return Deployed(
        account.bucket(name),
        policies,
        outputs,
        settings,
        lambda settings: account.client("s3", settings),
    )


class CheckpointBucketContract:
    """Requirements of the bucket on a server that enforces policies; provide the fixture `deployment`.

    Attributes:
        UNSEEN: Permissions whose lack has no effect on this server.
    """

    UNSEEN: frozenset[str] = frozenset()

    @pytest.fixture
    def directory(self, deployment: Deployed) -> Iterator[str]:
        """A checkpoint directory in the bucket, emptied afterwards."""
        yield deployment.directory
        bucket = deployment.bucket
        for key, upload in bucket.uploads():
            bucket.client.abort_multipart_upload(Bucket=bucket.name, Key=key, UploadId=upload)
        for key in bucket.keys():  # noqa: SIM118  # a bucket is not a dict
            bucket.client.delete_object(Bucket=bucket.name, Key=key)

    def test_policies_allow_exactly_these_actions(self, deployment: Deployed) -> None:
        assert actions_of(deployment.policies["Driver"]) == DRIVER
        assert actions_of(deployment.policies["Executor"]) == EXECUTORS

    def test_driver_policy_is_sufficient(self, deployment: Deployed, directory: str) -> None:
        deployment.become("Driver")
        drive(directory, deployment.bucket)

    def test_executor_policy_is_sufficient(self, deployment: Deployed, directory: str) -> None:
        deployment.become("Executor")
        execute(directory, deployment.bucket)

    @pytest.mark.parametrize("action", DRIVER)
    def test_driver_needs_each_permission(
        self, deployment: Deployed, directory: str, action: str
    ) -> None:
        self._skip_unseen(action)
        deployment.become("Driver", lacking=action)
        with pytest.raises((CheckpointError, AssertionError)):
            drive(directory, deployment.bucket)

    @pytest.mark.parametrize("action", EXECUTORS)
    def test_executor_needs_each_permission(
        self, deployment: Deployed, directory: str, action: str
    ) -> None:
        self._skip_unseen(action)
        deployment.become("Executor", lacking=action)
        with pytest.raises((CheckpointError, AssertionError)):
            execute(directory, deployment.bucket)

    @pytest.mark.parametrize("key", ["job/chk-1/_metadata", "job/_epoch/7"])
    @pytest.mark.parametrize("condition", [{}, {"IfNoneMatch": "*"}])
    def test_executor_can_not_commit_or_claim(
        self, deployment: Deployed, directory: str, key: str, condition: dict[str, str]
    ) -> None:
        client = deployment.client(deployment.settings(deployment.policies["Executor"]))
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(
                Bucket=deployment.bucket.name, Key=f"{PREFIX}/{key}", Body=b"", **condition
            )
        assert not deployment.bucket.keys()

    def test_executor_can_not_list_or_delete(self, deployment: Deployed, directory: str) -> None:
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

    @pytest.mark.parametrize("role", ["Driver", "Executor"])
    def test_role_can_not_access_other_prefixes(
        self, deployment: Deployed, directory: str, role: str
    ) -> None:
        bucket = deployment.bucket
        bucket.client.put_object(Bucket=bucket.name, Key="team/other", Body=b"")
        client = deployment.client(deployment.settings(deployment.policies[role]))
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
            pytest.skip(f"this server does not enforce {action}")

"""Emulated AWS accounts on loopback: stacks, roles, and enforced policies."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from servers.s3 import S3Bucket, S3Server, ministack_server, moto_server, settings_of

from holdfast.locations import S3Settings

Policy = dict[str, Any]
"""A policy document."""

ALL: Policy = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


@dataclass(frozen=True, slots=True)
class Account:
    """An account, accessed with all permissions.

    Attributes:
        server: Its server.
        ca_bundle: The certificates to trust, if it uses TLS.
        asks_for_bucket: Whether it requires permissions on the bucket where S3 requires them on each
            object that one request deletes.
    """

    server: S3Server
    ca_bundle: str | None = None
    asks_for_bucket: bool = False

    def client(self, service: str, settings: S3Settings | None = None) -> Any:
        """Return a client of boto3 without retries, with the credentials of another user if given."""
        import boto3  # slow to import
        from botocore.config import Config

        user = settings or settings_of(self.server)
        retries = {"mode": "standard", "total_max_attempts": 1}
        return boto3.client(
            service,
            endpoint_url=self.server.endpoint,
            region_name=self.server.region,
            aws_access_key_id=user.access_key,
            aws_secret_access_key=user.secret_key,
            aws_session_token=user.session_token,
            verify=self.ca_bundle,
            config=Config(s3={"addressing_style": "path"}, retries=retries, proxies={}),
        )

    def bucket(self, name: str) -> S3Bucket:
        """Return an existing bucket, accessed with all permissions."""
        return S3Bucket(self.server, name, self.client("s3"))

    def deploy(self, template: str, name: str, **parameters: str) -> dict[str, str]:
        """Create a stack from a template; returns its outputs by name."""
        stacks = self.client("cloudformation")
        stacks.create_stack(
            StackName=name,
            TemplateBody=template,
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
            ],
            Capabilities=["CAPABILITY_IAM"],
        )
        stacks.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
        )
        [stack] = stacks.describe_stacks(StackName=name)["Stacks"]
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def policy(self, arn: str) -> Policy:
        """Return the document of a managed policy."""
        iam = self.client("iam")
        version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        answer = iam.get_policy_version(PolicyArn=arn, VersionId=version)
        document: Policy = answer["PolicyVersion"]["Document"]
        return document

    def role(self, name: str, policy: Policy) -> str:
        """Create a role with a policy; returns its ARN."""
        iam = self.client("iam")
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
            ],
        }
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        if self.asks_for_bucket:
            policy = _for_the_bucket(policy)
        iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=json.dumps(policy))
        arn: str = role["Role"]["Arn"]
        return arn

    def settings(self, role: str) -> S3Settings:
        """Return settings with the credentials of a role."""
        return with_role_credentials(
            self.client("sts").assume_role(RoleArn=role, RoleSessionName="test"),
            settings_of(self.server, ca_bundle=self.ca_bundle),
        )


def _for_the_bucket(policy: Policy) -> Policy:
    """Extend the permissions on objects to the bucket."""
    statements = [
        {**statement, "Resource": [statement["Resource"], statement["Resource"].partition("/")[0]]}
        if statement["Effect"] == "Allow"
        else statement
        for statement in policy["Statement"]
    ]
    return {**policy, "Statement": statements}


def with_role_credentials(answer: Any, settings: S3Settings) -> S3Settings:
    """Return settings with the credentials in an answer of STS."""
    given = answer["Credentials"]
    return replace(
        settings,
        access_key=given["AccessKeyId"],
        secret_key=given["SecretAccessKey"],
        session_token=given["SessionToken"],
        # obstore would not trust a self-signed certificate.
        state_files="boto3",
    )


def without(policy: Policy, action: str) -> Policy:
    """Return a policy that no longer allows an action."""
    statements = []
    for statement in policy["Statement"]:
        actions = (
            [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        )
        if statement["Effect"] == "Allow" and action in actions:
            actions = [other for other in actions if other != action]
        if actions:
            statements.append({**statement, "Action": actions})
    return {**policy, "Statement": statements}


def actions_of(policy: Policy) -> list[str]:
    """Return the actions that a policy allows."""
    return [
        action
        for statement in policy["Statement"]
        if statement["Effect"] == "Allow"
        for action in statement["Action"]
    ]


@contextmanager
def moto_account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """Run moto, which enforces actions and resources of roles, and ignores policies of buckets."""
    with moto_server() as server:
        from moto import settings
        from moto.core.authorization import ActionAuthenticatorMixin

        iam = Account(server).client("iam")
        iam.create_user(UserName="admin")
        iam.put_user_policy(UserName="admin", PolicyName="all", PolicyDocument=json.dumps(ALL))
        key = iam.create_access_key(UserName="admin")["AccessKey"]
        monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
        monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)
        yield Account(
            replace(server, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"]),
            asks_for_bucket=True,
        )


@contextmanager
def ministack_account(directory: Path) -> Iterator[Account]:
    """Run ministack with TLS, which enforces actions, resources and conditions, also of buckets' policies."""
    if shutil.which("openssl") is None:
        pytest.skip("ministack makes its certificate with openssl, which is missing")
    with ministack_server(directory, AUTH="true", USE_SSL="1") as server:
        # These are the credentials of the account's root.
        yield Account(
            replace(server, access_key="test", secret_key="test"),
            str(directory / "ministack-tls" / "server.crt"),
        )

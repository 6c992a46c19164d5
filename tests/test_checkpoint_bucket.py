"""The bucket of `infra/aws`: checked by cfn-lint, deployed in moto, used there by its two roles."""

from collections.abc import Iterator

import pytest
from contracts.checkpoint_bucket import TEMPLATE, CheckpointBucketContract, Deployed, deploy
from servers.aws import Account, moto_account

pytestmark = [
    # A whole account in moto and all of cfn-lint's rules, for a template that seldom changes.
    pytest.mark.exhaustive,
    # It makes no policies of buckets, and reports that.
    pytest.mark.filterwarnings("ignore:Tried to parse AWS..S3..BucketPolicy:UserWarning"),
]

KEY = "arn:aws:kms:us-east-1:111122223333:key/0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with pytest.MonkeyPatch.context() as monkeypatch, moto_account(monkeypatch) as account:
        yield account


@pytest.fixture(scope="module")
def deployment(account: Account) -> Deployed:
    return deploy(account)


def test_cfn_lint_finds_nothing() -> None:
    from cfnlint.api import lint
    from cfnlint.config import ManualArgs

    problems = lint(TEMPLATE.read_text(), config=ManualArgs(regions=["us-east-1"]))
    assert problems == []


class TestInMoto(CheckpointBucketContract):
    """A policy engine that evaluates actions and resources; of the bucket it creates the encryption."""


def test_without_a_key_s3_encrypts_by_its_own(deployment: Deployed) -> None:
    assert encryption_of(deployment) == {"SSEAlgorithm": "AES256"}


def test_a_key_encrypts_and_both_roles_may_use_it(account: Account) -> None:
    deployment = deploy(account, KmsKeyArn=KEY)
    assert encryption_of(deployment) == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}
    iam = account.client("iam")
    roles = [
        deployment.outputs[f"{process}RoleArn"].rpartition("/")[2]
        for process in ("Driver", "Executor")
    ]
    for role in roles:
        attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
        assert deployment.outputs["KeyPolicyArn"] in [policy["PolicyArn"] for policy in attached]
    [statement] = account.policy(deployment.outputs["KeyPolicyArn"])["Statement"]
    assert statement["Resource"] == KEY


def encryption_of(deployment: Deployed) -> dict[str, str]:
    answer = deployment.bucket.client.get_bucket_encryption(Bucket=deployment.bucket.name)
    [rule] = answer["ServerSideEncryptionConfiguration"]["Rules"]
    by: dict[str, str] = rule["ApplyServerSideEncryptionByDefault"]
    return by

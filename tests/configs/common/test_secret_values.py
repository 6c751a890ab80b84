"""Secrets in gin files are hidden, whatever their form; all else is unchanged."""

import pytest

from configs.common.secret_values import MASK, is_secret_name, masked_configuration

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        "a.Tracker.api_key = 's3cr3t'\n",
        'a.Tracker.API_TOKEN = "s3cr3t"',
        "scope/a.Tracker.apikey = 's3cr3t'\n",
        "a.Tracker.password = \\\n    's3cr3t'\n",
        "a.Tracker.passwords = \\\n    ('one',\n     's3cr3t')\n",
        "a.Tracker.client_secret = (\n  's3cr3t'\n)\n",
        "HF = 's3cr3t'\na.Rows.token = %HF\n",
        "MY_TOKEN = 's3cr3t'\na.Rows.name = %MY_TOKEN\n",
        "a.Tracker.options = {'rows': 3, 'api_key': 's3cr3t'}\n",
        "a.Tracker.options = \\\n    {'rows': 3,\n     'password': 's3cr\\'3t s3cr3t'}\n",
        "a.Rows.url = 'https://me:s3cr3t@example.org/x'\n",
        "a.Login.passphrase = b's3cr3t'\n",
        "a.Login.credentials = {'user': 's3cr3t'}\n",
        "a.Login.password = 's3cr3t",
    ],
)
def test_a_secret_is_hidden(text):
    around = "# a comment\nimport a\nb.TrainConfig.steps = 3\n" + text + "\nb.TrainConfig.plan = 'plan.json'\n"
    masked = masked_configuration(around)
    assert SECRET in around and SECRET not in masked and "(hidden)" in masked
    assert masked.startswith("# a comment\nimport a\nb.TrainConfig.steps = 3\n")
    assert masked.endswith("b.TrainConfig.plan = 'plan.json'\n") or text.count("'") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n# key = 'x'\n",
        "data_config.DataConfig.tokens = 4096\n",
        "backbone.Backbone.key_dim = 64\nbackbone.Backbone.key_norm = True\n",
        "data.Rows.tokenizer = 'gpt2'\n",
        "data.Rows.token = None\ndata.Rows.secret = ''\ndata.Rows.key = @make_key()\n",
        "config.TrainConfig.mixture = (('vqa', 1.0), ('text', 0.5))\n",
        "a.b = {'rows': 'key', 'url': 'https://example.org/@x'}\r\n",
    ],
)
def test_other_values_are_unchanged(text):
    assert masked_configuration(text) == text


def test_names():
    assert all(
        map(is_secret_name, ("token", "x.hf_token", "s/x.API_KEY", "aws_secret_access_key", "key_file", "passwd"))
    )
    assert not any(map(is_secret_name, ("tokenizer", "x.keyboard", "secretary", "token.steps", "key/rows")))
    assert MASK not in masked_configuration("x = 1\n")

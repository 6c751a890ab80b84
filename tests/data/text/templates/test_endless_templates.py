"""Chat templates whose time, memory or nesting has no bound are refused; those of published models are not."""

import resource
import time

import pytest

from data.datasets.conversations import Conversations
from data.errors import BadSampleError, DataError
from data.records import Record, TextPart, Turn
from data.text.rendering import render_conversation
from data.text.templates.find_template import find_template
from tests.data.text import published_templates
from tests.data.text.templates.test_unusual_templates import TURNS, own_tokenizer

jinja2 = pytest.importorskip("jinja2")

ANSWERS = TURNS.replace("END", "eos_token")
DOUBLED = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"


def doubled(start, step, use=""):
    return DOUBLED.replace("START", start).replace("STEP", step) + use


ENDLESS = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a nested range with a long body": "{% for a in range(99999) %}" + "{{ '' }}" * 1000 + "{% endfor %}",
    "a recursive loop": "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "a filter of a range in a range": "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "a lazy filter": "{{ range(99999) | map('replace', '', 'abcdefgh' * 9999) | list | length }}",
    "a text doubled by +": doubled("'ab'", "ns.x + ns.x"),
    "a text doubled by ~": doubled("'ab'", "ns.x ~ ns.x"),
    "a text doubled by *": doubled("'ab'", "ns.x * 2"),
    "a text doubled by replace": doubled("'ab'", "ns.x.replace('b', ns.x)"),
    "a text doubled by a filter": doubled("'ab'", "ns.x | replace('b', ns.x)"),
    "a text doubled by join": doubled("'ab'", "[ns.x, ns.x] | join"),
    "a text doubled by a method": doubled("'ab'", "'-'.join([ns.x, ns.x])"),
    "a text doubled by a format": doubled("'ab'", "'%s%s' % (ns.x, ns.x)"),
    "a text doubled by format": doubled("'ab'", "'{0}{0}'.format(ns.x)"),
    "a list doubled": doubled("[1]", "ns.x + ns.x"),
    "a list of itself": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    "an object of itself": doubled("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    "a made object of itself": doubled("{}", "dict(a=ns.x, b=ns.x)"),
    "a number squared": doubled("3", "ns.x * ns.x"),
    "a block written many times": "{% set big = 'a' * 999999 %}{% set all %}{% for a in range(99999) %}{{ big }}"
    "{% endfor %}{% endset %}",
    "a long text": "{{ 'a' * 999999999 }}",
    "a long text written often": "{% set big = 'a' * 999999 %}{% for a in range(99999) %}{{ big }}{% endfor %}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a wide format": "{{ '%999999999d' % 1 }}",
    "a wide format of a text": "{{ '{:999999999}'.format(1) }}",
    "a width that is an argument": "{{ '{:{}}'.format(1, 999999999) }}",
    "a wide method": "{{ 'a'.ljust(999999999) }}",
    "many bytes of a number": "{{ (1).to_bytes(999999999, 'big') }}",
    "a wide indent": "{{ 'a' | indent(999999999, true) }}",
    "an indent of a long text": "{{ ('\n' * 99999) | indent('a' * 99999) }}",
    "indented JSON": "{{ [1] | tojson(indent=999999999) }}",
    "many words": "{{ lipsum(n=999999999) }}",
    "many parts": "{{ ('a ' * 8000000).split(' ') | length }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_bound_is_refused_in_bounded_time_and_memory(name):
    tokenizer = own_tokenizer(ENDLESS[name] + ANSWERS)
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(DataError, match="chat template cannot be") as caught:
        Conversations("train", tokenizer=tokenizer, template="tokenizer")
    assert len(str(caught.value)) <= 500
    assert time.process_time() - seconds < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


NESTED = {
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "conditions": "{% if true %}" * 5000 + "{% endif %}" * 5000,
    "loops": "{% for a in [1] %}" * 50 + "{% endfor %}" * 50,
    "negations": "{{ " + "not " * 50000 + "true }}",
    "sums": "{{ 1" + " + 1" * 5000 + " }}",
    "a long one": "a" * 1_000_000,
}


@pytest.mark.parametrize("name", NESTED)
def test_a_template_that_nests_too_deeply_or_is_too_long_is_refused(name):
    with pytest.raises(DataError, match="the tokenizer's chat template (cannot be|has)"):
        Conversations("train", tokenizer=own_tokenizer(NESTED[name] + ANSWERS), template="tokenizer")


def conversation(turns, characters):
    roles = ("user", "assistant") * turns
    return Record("r", tuple(Turn(role, (TextPart("a b\n" * (characters // 4)),)) for role in roles))


def test_long_conversations_are_within_the_limits():
    for name in ("chatml", "thinking", "llama3", "gemma"):
        tokenizer = own_tokenizer(
            "{% set bos_token = '<|begin_of_text|>' %}" + published_templates.TEXT_TEMPLATES[name]
        )
        template = find_template("tokenizer", tokenizer)
        assert sum(1 for _ in template.conversation(conversation(40, 400), tokenizer)) > 80


def test_a_conversation_that_takes_too_long_is_a_bad_sample_and_others_are_not():
    source = "{% for a in range(messages | length ** 8) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + ANSWERS
    source = source.replace("messages | length ** 8", "0 if messages | length < 4 else 99999")
    tokenizer = own_tokenizer(source)
    template = find_template("tokenizer", tokenizer)
    assert render_conversation(conversation(1, 8), template, tokenizer)
    with pytest.raises(BadSampleError, match=r"refuses it: it takes more than 1,000,000 steps"):
        render_conversation(conversation(2, 8), template, tokenizer)

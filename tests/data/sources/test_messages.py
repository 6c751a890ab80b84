import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import BadSampleError
from data.records import MEDIA_PARTS, AudioPart, ImagePart, Media, Record, TextPart
from data.sources.messages import parse_messages
from tests.data.sources.media import told

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def files(**counts):
    """Parts by kind, as many as the counts say."""
    return {
        kind: [MEDIA_PARTS[kind](Media.from_file(f"{kind}{number}")) for number in range(count)]
        for kind, count in counts.items()
    }


def said(*messages):
    return [{"from": speaker, "value": text} for speaker, text in messages]


def in_short(messages, images=0, clips=0, videos=0):
    return told(Record("key", parse_messages("key", messages, files(image=images, audio=clips, video=videos))))


def test_marks_are_replaced_by_media_and_texts_beside_them_stay():
    messages = said(("system", "Be brief."), ("human", "<image>\nWhat is\nit?"), ("gpt", "A <b>\n"))
    assert in_short(messages, 1) == [
        ("system", ["Be brief."]),
        ("user", ["<ImagePart>", "\nWhat is\nit?"]),
        ("assistant", ["A <b>\n"]),
    ]


def test_media_are_placed_at_their_marks_in_order():
    messages = said(
        ("human", "First <image>, then\n<image>\n<audio>"), ("gpt", "I see."), ("human", "<image>"), ("gpt", "<image>")
    )
    turns = parse_messages("key", messages, files(image=4, audio=1))
    parts = [part for turn in turns for part in turn.parts]
    assert [part.media.path for part in parts if isinstance(part, ImagePart)] == [
        "image0",
        "image1",
        "image2",
        "image3",
    ]
    assert [part.media.path for part in parts if isinstance(part, AudioPart)] == ["audio0"]
    assert [part.text for part in turns[0].parts if isinstance(part, TextPart)] == ["First ", ", then\n", "\n"]
    assert [type(part) for part in turns[0].parts] == [TextPart, ImagePart, TextPart, ImagePart, TextPart, AudioPart]
    assert [type(part) for part in turns[3].parts] == [ImagePart]


def test_media_without_marks_come_before_the_first_users_words():
    messages = said(("system", "s"), ("human", "q"), ("gpt", "a"))
    assert in_short(messages, 2, 1)[1] == ("user", ["<ImagePart>", "<ImagePart>", "<AudioPart>", "q"])


def test_messages_with_roles_and_lists_of_contents():
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "The <image> tag?"}]},
        {"role": "assistant", "content": "HTML."},
    ]
    assert in_short(messages, 1) == [("user", ["<ImagePart>", "The <image> tag?"]), ("assistant", ["HTML."])]


@pytest.mark.parametrize(
    ("messages", "images", "reason"),
    [
        (None, 0, "not a list of messages"),
        ([], 0, "not a list of messages"),
        ("abc", 0, "not a list of messages"),
        ([3], 0, "message 1 is not an object"),
        (said(("tool", "x")), 0, "message 1 is from 'tool'"),
        (said((["human"], "x")), 0, "is from"),
        ([{"from": "human"}], 0, "message 1 has no text"),
        (said(("human", "q")), 0, "nothing to predict"),
        (said(("human", "q"), ("gpt", " ")), 0, r"turn 2 \(assistant\) is empty"),
        (said(("human", "<image> <image>"), ("gpt", "a")), 1, "2 <image> placeholders for 1 files"),
        (said(("human", "<image>"), ("gpt", "a")), 0, "1 <image> placeholders for 0 files"),
        (said(("human", "\ud800"), ("gpt", "a")), 0, "lone surrogate"),
        ([{"role": "user", "content": [{"type": "table"}]}], 0, "item of type 'table'"),
        ([{"role": "user", "content": [3]}], 0, "item of type None"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], 0, "message 1 is not a text: 3"),
    ],
)
def test_invalid_conversations_are_refused_with_the_reason(messages, images, reason):
    with pytest.raises(BadSampleError, match=reason):
        in_short(messages, images)


texts = st.lists(st.sampled_from(["<image>", "<audio>", "<video>", "a", "b c", "\n", " "]), max_size=6).map("".join)


@given(messages=st.lists(st.tuples(st.sampled_from(["human", "gpt", "system"]), texts), max_size=5), data=st.data())
@settings(max_examples=50, deadline=None)
def test_every_medium_and_every_text_is_kept_in_order(messages, data):
    whole = "".join(text for _, text in messages)
    images = data.draw(st.sampled_from([whole.count("<image>"), 2]))
    try:
        turns = parse_messages(
            "key",
            said(*messages),
            files(image=images, **{kind: whole.count(f"<{kind}>") for kind in ("audio", "video")}),
        )
    except BadSampleError:
        return
    parts = [part for turn in turns for part in turn.parts]
    for kind, name in ((part, name) for name, part in MEDIA_PARTS.items()):
        paths = [part.media.path for part in parts if isinstance(part, kind)]
        assert paths == [f"{name}{number}" for number in range(len(paths))]
    assert sum(isinstance(part, ImagePart) for part in parts) == images
    kept = "".join(part.text for part in parts if isinstance(part, TextPart))
    told = "".join(text for _, text in messages if text.strip())  # a blank one may hold what has no placeholder
    assert kept == re.sub("<(image|audio|video)>", "", told)


@given(messages=json_values | st.lists(st.dictionaries(st.sampled_from(["from", "value", "role"]), json_values)))
@settings(max_examples=50, deadline=None)
def test_any_value_gives_turns_or_bad_sample_error(messages):
    try:
        turns = parse_messages("key", messages, files(image=1))
    except BadSampleError as error:
        assert error.where == "key"
    else:
        assert turns


def test_clips_stand_at_their_placeholders_and_items_or_first():
    said_twice = said(("human", "<video>\nWhat happens?"), ("gpt", "It rains."))
    as_items = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What happens?"}]}]
    expected = [("user", ["<VideoPart>", "What happens?"]), ("assistant", ["It rains."])]
    assert in_short(said_twice, videos=1) == [("user", ["<VideoPart>", "\nWhat happens?"]), expected[1]]
    assert in_short([*as_items, {"role": "assistant", "content": "It rains."}], videos=1) == expected
    assert in_short(said(("human", "What happens?"), ("gpt", "It rains.")), videos=1) == expected
    with pytest.raises(BadSampleError, match="1 <video> placeholders for 2 files"):
        in_short(said_twice, videos=2)


def test_line_breaks_beside_placeholders_stay_as_in_lists_of_contents():
    text = "Image-1: <image>\nImage-2: <image>\n\nTask:"
    items = ["Image-1: ", "image", "\nImage-2: ", "image", "\n\nTask:"]
    listed = [{"type": "image"} if item == "image" else {"type": "text", "text": item} for item in items]
    answer = ("assistant", ["Done."])
    expected = [("user", ["<ImagePart>" if item == "image" else item for item in items]), answer]
    assert in_short(said(("human", text), ("gpt", "Done.")), 2) == expected
    talk = [{"role": "user", "content": listed}, {"role": "assistant", "content": "Done."}]
    assert in_short(talk, 2) == expected
    between = [{"type": "image"}, {"type": "text", "text": "\n"}, {"type": "image"}]
    assert in_short([{"role": "user", "content": between}, talk[1]], 2)[0] == (
        "user",
        ["<ImagePart>", "\n", "<ImagePart>"],
    )
    assert in_short(said(("human", "<image>\n<image>"), ("gpt", "Done.")), 2)[0][1][1] == "\n"


@pytest.mark.parametrize(
    "asked",
    ["What does <video> do, and <audio>?", "<video> is a tag.", "```html\n<body>\n<video>\n</video>\n</body>\n```"],
)
def test_tags_of_html_are_text_where_the_entry_has_no_such_media(asked):
    messages = said(("human", asked), ("gpt", "<video>\nIt embeds a clip, as <audio> does."))
    turns = parse_messages("key", messages, {})
    assert [turn.parts for turn in turns] == [(TextPart(message["value"]),) for message in messages]
    (first, *_), _ = (turn.parts for turn in parse_messages("key", messages, files(image=1)))
    assert isinstance(first, ImagePart)


@pytest.mark.parametrize("asked", ["<video>\nWhat happens?", "What happens?\n<video>", "<video>", "What is <image>?"])
def test_placeholders_of_missing_files_are_refused(asked):
    with pytest.raises(BadSampleError, match="1 <(video|image)> placeholders for 0 files"):
        parse_messages("key", said(("human", asked), ("gpt", "It rains.")), {})


def test_an_image_named_in_the_words_of_an_answer_is_no_target():
    messages = said(("human", "What is it?"), ("gpt", "The <image> shows a house."))
    with pytest.raises(BadSampleError, match="message 2 has <image> beside words of the answer"):
        in_short(messages, 1)
    assert in_short(said(("human", "Draw a house."), ("gpt", "<image>")), 1)[1] == ("assistant", ["<ImagePart>"])
    listed = {"role": "assistant", "content": [{"type": "text", "text": "Here: "}, {"type": "image"}]}
    assert in_short([*said(("human", "Draw.")), listed], 1)[1] == ("assistant", ["Here: ", "<ImagePart>"])
    svg = said(("human", "Which tag?"), ("gpt", "Use <image>, as SVG does."))
    assert parse_messages("key", svg, {})[1].parts == (TextPart("Use <image>, as SVG does."),)


@pytest.mark.parametrize(
    "message",
    [
        {"from": "human", "value": "What?", "image": "a.jpg"},
        {"role": "user", "content": [{"type": "image", "image": "a.jpg"}, {"type": "text", "text": "What?"}]},
    ],
)
def test_files_named_by_a_message_are_refused(message):
    with pytest.raises(BadSampleError, match="message 1 has 'image', which names media and is not read"):
        in_short([message, *said(("gpt", "A house."))], 1)

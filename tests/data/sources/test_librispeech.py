import io
import pickle

import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import BadSampleError, DataError
from data.records import RecordSource
from data.sources.librispeech import LibriSpeech
from tests.data.sources.media import seconds_of, speech, told

CLIP = b"fLaC"


def chapter(folder, speaker, number, utterances, clips=None):
    """Writes a chapter: (clip, transcript) by the number of the utterance."""
    home = folder / speaker / number
    home.mkdir(parents=True)
    names = {f"{speaker}-{number}-{place:04}": pair for place, pair in enumerate(utterances)}
    for name, (clip, _) in names.items():
        (home / f"{name}.flac").write_bytes(clip)
    lines = [f"{name} {sentence}\n" for name, (_, sentence) in names.items()]
    (home / f"{speaker}-{number}.trans.txt").write_text("".join(lines))
    return home


def test_utterances_are_transcribed(tmp_path):
    spoken = [(clip, sentence.upper()) for clip, sentence in speech().values()]
    chapter(tmp_path / "dev", "84", "121123", spoken[:2])
    chapter(tmp_path / "dev", "1089", "134686", spoken[2:])
    source = LibriSpeech(str(tmp_path / "dev"))
    assert isinstance(source, RecordSource)
    assert (source.name, len(source)) == ("dev", 5)
    keys = [source[index].key for index in range(5)]
    assert keys == [
        *[f"1089/134686/1089-134686-{n:04}" for n in range(3)],
        *[f"84/121123/84-121123-{n:04}" for n in (0, 1)],
    ]
    last = source[4]
    assert told(last) == [("user", ["<AudioPart>"]), ("assistant", ["HE WAS NOT AN ILL DISPOSED YOUNG MAN"])]
    assert seconds_of(last.turns[0].parts[0]) == pytest.approx(2.99)
    assert soundfile.info(io.BytesIO(last.turns[0].parts[0].media.read())).samplerate == 16_000
    assert pickle.loads(pickle.dumps(source))[4] == last


def test_every_line_and_every_clip_is_accounted_for(tmp_path):
    home = chapter(tmp_path, "1", "2", [(CLIP, "ONE"), (CLIP, "TWO"), (CLIP, " "), (CLIP, "FOUR")])
    (home / "1-2-0001.flac").unlink()
    (home / "1-2-0009.flac").write_bytes(CLIP)
    with (home / "1-2.trans.txt").open("ab") as file:
        file.write(b"\r\n1-2-0000 AGAIN\n1-2-0009\xff \xff\n1-2-0010 ../../x\n")
    source = LibriSpeech(str(tmp_path), "own")
    good, bad = [], []
    for index in range(len(source)):
        try:
            good.append(told(source[index])[1][1])
        except BadSampleError as error:
            bad.append((error.where, error.reason))
    assert good == [["ONE"], ["FOUR"]]
    again = sum(len(f"1-2-000{n} {word}\n") for n, word in enumerate(("ONE", "TWO", " ", "FOUR"))) + 2
    assert bad == [
        ("1/2/1-2-0001", "it has no clip 1-2-0001.flac"),
        ("1/2/1-2-0002", "the transcript is empty"),
        (f"1/2/1-2-0000, byte {again}", "it is transcribed twice"),
        ("1/2/1-2-0009\\xff", "it has no clip 1-2-0009\\xff.flac"),
        ("1/2/1-2-0010", "it has no clip 1-2-0010.flac"),
        ("1/2/1-2-0009", "it has no transcript"),
    ]


def test_missing_clips_are_named_when_read(tmp_path):
    home = chapter(tmp_path, "1", "2", [(CLIP, "ONE")])
    source = LibriSpeech(str(tmp_path))
    (home / "1-2-0000.flac").unlink()
    with pytest.raises(BadSampleError, match=r"1-2-0000\.flac cannot be read"):
        source[0].turns[0].parts[0].media.read()


def test_invalid_sources_are_refused_at_the_start(tmp_path):
    with pytest.raises(DataError, match="gone' is not a folder"):
        LibriSpeech(str(tmp_path / "gone"))
    with pytest.raises(DataError, match="has no .*trans.txt; give the folder"):
        LibriSpeech(str(tmp_path))
    (tmp_path / "1-2.trans.txt").write_text(" \n")
    with pytest.raises(DataError, match="only empty transcripts"):
        LibriSpeech(str(tmp_path))


@given(content=st.binary(max_size=50) | st.text("a b/.\0\n\r\x1c\x85é", max_size=20).map(str.encode))
@settings(deadline=None)
def test_any_transcript_gives_records_or_data_errors(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "libri"
    folder.mkdir(exist_ok=True)
    (folder / "a.flac").write_bytes(CLIP)
    (folder / "x.trans.txt").write_bytes(content)
    try:
        source = LibriSpeech(str(folder))
    except DataError:
        return
    for index in range(len(source)):
        try:
            assert source[index].key == "./a"
        except BadSampleError as error:
            assert error.reason

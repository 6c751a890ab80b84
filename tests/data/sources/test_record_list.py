"""Records from Python dictionaries: images in every form give the same pixels; what is wrong is named."""

import pathlib
import pickle

import numpy as np
import pytest
from PIL import Image, ImageCms

from data.errors import BadSampleError
from data.media.images import image_size, read_image
from data.records import RecordSource
from data.sources.record_list import RecordList
from tests.data.sources.media import told

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "a.png"
    Image.fromarray(PIXELS).save(path)
    return path


def one(image, **fields):
    return RecordList([{"image": image, "question": "What?", "answer": "That."} | fields])


FORMS = {
    "path": lambda path: str(path),
    "Path": lambda path: path,
    "bytes": pathlib.Path.read_bytes,
    "array": lambda path: PIXELS,
    "PIL": lambda path: Image.fromarray(PIXELS),
    "PIL of a file": Image.open,
    "with alpha": lambda path: Image.fromarray(PIXELS).convert("RGBA"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_image_in_any_form_has_the_same_pixels(path, form):
    source = one(form(path))
    assert isinstance(source, RecordSource)
    record = pickle.loads(pickle.dumps(source))[0]
    assert told(record) == [("user", ["<ImagePart>", "What?"]), ("assistant", ["That."])]
    media = record.turns[0].parts[0].media
    assert image_size(media) == (5, 7)
    np.testing.assert_array_equal(read_image(media), PIXELS)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "CMYK", "YCbCr", "HSV", "RGBX", "RGBa", "LAB"])
def test_pil_images_of_any_mode_have_the_pixels_that_pillow_converts_them_to(mode):
    image = Image.fromarray(PIXELS)
    if mode == "LAB":
        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        image = ImageCms.profileToProfile(image, rgb, lab, outputMode="LAB")
        expected = ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB")
        assert np.abs(np.asarray(expected, int) - PIXELS).mean() < 2  # 8 bits of L, a and b are coarse
    else:
        for step in {"LA": ["L", "LA"], "PA": ["P", "PA"], "RGBa": ["RGBA", "RGBa"]}.get(mode, [mode]):
            image = image.convert(step)
        expected = image.convert("RGBA" if mode == "RGBa" else "RGB").convert("RGB")
    read = read_image(one(image)[0].turns[0].parts[0].media)
    np.testing.assert_array_equal(read, np.asarray(expected))
    image.getexif()[0x0112] = 6
    np.testing.assert_array_equal(read_image(one(image)[0].turns[0].parts[0].media), np.rot90(read, -1))


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pil_images_of_unknown_range_are_refused(mode):
    with pytest.raises(BadSampleError, match=f"pixels of mode {mode} have no known range"):
        one(Image.new(mode, (3, 2)))[0]


def test_grey_arrays_and_turned_photographs():
    grey = PIXELS[..., 0]
    np.testing.assert_array_equal(read_image(one(grey)[0].turns[0].parts[0].media), np.stack([grey] * 3, -1))
    turned = Image.fromarray(PIXELS)
    turned.getexif()[0x0112] = 6  # the camera was held upright
    np.testing.assert_array_equal(read_image(one(turned)[0].turns[0].parts[0].media), np.rot90(PIXELS, -1))


def test_paths_are_relative_to_the_folder_and_may_lead_anywhere(path):
    source = RecordList([{"image": "../images/x/../a.png", "question": "?", "answer": "!"}], str(path.parent / "x"))
    (path.parent / "x").mkdir()
    (path.parent / "images" / "x").mkdir(parents=True)
    (path.parent / "images" / "a.png").write_bytes(path.read_bytes())
    assert image_size(source[0].turns[0].parts[0].media) == (5, 7)


def test_several_images_clips_and_none():
    several = one([PIXELS, PIXELS], question="<image> or <image>?", audio="a.wav")
    assert told(several[0])[0] == ("user", ["<AudioPart>", "<ImagePart>", " or ", "<ImagePart>", "?"])
    assert told(RecordList([{"question": "Who?", "answer": "I."}])[0])[0] == ("user", ["Who?"])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            {"img": PIXELS, "question": "?", "answer": "!"},
            "dictionary of question, answer, image, audio, video; .* of 'img'",
        ),
        (("?", "!"), "this one is of tuple"),
        ({"question": "?"}, "the answer is not a text: None"),
        ({"question": " ", "answer": "!"}, "the question is empty"),
        ({"image": 5, "question": "?", "answer": "!"}, "the image is a int, neither a path nor the bytes"),
        ({"image": b"", "question": "?", "answer": "!"}, "the image is a bytes, neither"),
        ({"audio": PIXELS, "question": "?", "answer": "!"}, "the audio is a ndarray"),
        ({"image": PIXELS / 255, "question": "?", "answer": "!"}, r"not float64\(5, 7, 3\)"),
        ({"image": PIXELS[:0], "question": "?", "answer": "!"}, r"not uint8\(0, 7, 3\)"),
        ({"image": PIXELS, "question": "<image><image>?", "answer": "!"}, "2 <image> placeholders for 1 files"),
    ],
)
def test_unusable_records_are_bad_samples_named_by_their_number(record, reason):
    with pytest.raises(BadSampleError, match=reason) as caught:
        RecordList([{"question": "?", "answer": "!"}, record], name="mine")[1]
    assert caught.value.where == "mine[1]"


class OpensFiles:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        with open(f"/nowhere/{index}") as file:
            return {"question": file.read(), "answer": "!"}


def test_a_file_that_a_sequence_cannot_open_is_a_bad_sample():
    with pytest.raises(BadSampleError, match=r"records\[1\] cannot be read \(FileNotFoundError"):
        RecordList(OpensFiles())[1]

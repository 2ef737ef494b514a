"""Files are found, read, checked and refused as the user was told."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.base import Reader, SourceContext
from penstock.connectors.files import Files
from penstock.errors import SchemaError, SettingsError, SourceError

NOW_US = 1_000_000


def parquet(path: Path, values: list[int], **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": pa.array(values, pa.int64()), **more}), path)
    return path


def drain(source: Files, **context: Any) -> list[dict[str, Any]]:
    found = []
    for shard in range(context.pop("shards", 1)):
        reader = source.open(SourceContext(shard, 1, available_now=True, **context))
        while not reader.exhausted():
            batch = reader.read(1000, NOW_US)
            found += batch.to_pylist() if batch is not None else []
        reader.close()
    return found


def values(reader: Reader, now_us: int = NOW_US) -> list[int]:
    found = []
    while (batch := reader.read(1000, now_us)) is not None:
        found += batch.column(0).to_pylist()
    return found


def test_oldest_files_come_first_and_hidden_ones_never(tmp_path: Path) -> None:
    for name, second in (("b", 1), ("a", 3), ("deep/er/c", 2)):
        os.utime(parquet(tmp_path / f"{name}.parquet", [second]), (0, second))
    for name in ("_hidden.parquet", ".x.parquet", "y.parquet.tmp", "_staging/z.parquet"):
        parquet(tmp_path / name, [99])
    (tmp_path / "README").write_text("not data")
    source = Files(tmp_path)
    assert source.format.name == "parquet"
    assert drain(source) == [{"x": 1}, {"x": 2}, {"x": 3}]


def test_new_files_are_found_at_the_poll_interval_and_journalled_once(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [1, 2])
    reader = Files(tmp_path, pollInterval="2 seconds").open(SourceContext(0, 1))
    assert values(reader) == [1, 2]
    entry = reader.journal()
    assert [file[0] for file in entry["files"]] == ["a.parquet"]
    assert reader.journal() is None
    assert reader.wait_s(NOW_US) == 1.0
    parquet(tmp_path / "b.parquet", [3])
    assert values(reader, NOW_US + 1_000_000) == []
    assert values(reader, NOW_US + 2_000_000) == [3]
    assert [file[0] for file in reader.journal()["files"]] == ["b.parquet"]
    assert not reader.exhausted()


def test_available_now_reads_what_was_there_at_the_start(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [1])
    reader = Files(tmp_path).open(SourceContext(0, 1, available_now=True))
    parquet(tmp_path / "b.parquet", [2])
    assert not reader.exhausted()
    assert values(reader) == [1]
    assert reader.exhausted()


def test_journal_of_replayed_epochs_may_be_dropped(tmp_path: Path) -> None:
    """Files found at the start belong to the first epoch after the replay."""
    parquet(tmp_path / "a.parquet", [1])
    source = Files(tmp_path)
    reader = source.open(SourceContext(0, 1, available_now=True))
    assert values(reader) == [1]
    record = (reader.position(), reader.journal())
    parquet(tmp_path / "b.parquet", [2])
    again = source.open(SourceContext(0, 1, journal=[record[1]], available_now=True))
    assert again.read(10, NOW_US, record[0]).column(0).to_pylist() == [1]
    assert again.read(10, NOW_US, record[0]) is None
    assert again.journal() is None
    assert values(again) == [2]
    assert [file[0] for file in again.journal()["files"]] == ["b.parquet"]


def test_every_file_belongs_to_one_shard(tmp_path: Path) -> None:
    for number in range(40):
        parquet(tmp_path / f"f{number}.parquet", [number])
    source = Files(tmp_path)
    parts = [values(source.open(SourceContext(shard, 3))) for shard in range(3)]
    assert sorted(value for part in parts for value in part) == list(range(40))
    assert all(len(part) > 5 for part in parts)
    assert source.shards(4) == 4
    assert Files(tmp_path, shards=2).shards(4) == 2


def test_single_file_and_glob(tmp_path: Path) -> None:
    parquet(tmp_path / "day=1" / "a.parquet", [1])
    parquet(tmp_path / "day=2" / "b.parquet", [2])
    parquet(tmp_path / "other" / "c.parquet", [3])
    assert drain(Files(f"file://{tmp_path}/day=1/a.parquet")) == [{"x": 1}]
    assert Files(tmp_path / "day=1" / "a.parquet").shards(4) == 1
    assert drain(Files(f"{tmp_path}/day=*/*.parquet")) == [{"x": 1}, {"x": 2}]
    assert drain(Files(f"{tmp_path}/day=*")) == [{"x": 1}, {"x": 2}]
    assert drain(Files(tmp_path, pathGlobFilter="c*")) == [{"x": 3}]


def test_parquet_resumes_in_the_middle_of_a_row_group(tmp_path: Path) -> None:
    table = pa.table({"x": list(range(1000))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    source = Files(tmp_path)
    first = source.open(SourceContext(0, 1))
    first.read(750, NOW_US)
    while first.position()["row"] < 750:
        first.read(750 - first.position()["row"], NOW_US)
    journal = [first.journal()]
    again = source.open(SourceContext(0, 1, position=first.position(), journal=journal))
    assert values(again) == list(range(750, 1000))


def test_csv_options(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;name\n1;'a;b'\n2;-\n3;\n")
    source = Files(tmp_path, sep=";", quote="'", nullValue="-")
    assert source.schema == pa.schema({"id": pa.int64(), "name": pa.string()})
    assert [row["name"] for row in drain(source)] == ["a;b", None, ""]
    (tmp_path / "a.csv").write_text("1,x\n2,\n")
    source = Files(tmp_path, header=False)
    assert drain(source) == [{"_c0": 1, "_c1": "x"}, {"_c0": 2, "_c1": None}]
    source = Files(tmp_path, header=False, schema="id INT, name STRING")
    assert drain(source) == [{"id": 1, "name": "x"}, {"id": 2, "name": None}]
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("3,z\n")
    assert len(drain(source)) == 3


def test_large_csv_is_read_in_blocks(tmp_path: Path) -> None:
    lines = "".join(f'{number},"line {number}\nmore"\n' for number in range(200_000))
    (tmp_path / "a.csv").write_text("id,text\n" + lines)
    source = Files(tmp_path, multiLine=True)
    reader = source.open(SourceContext(0, 1, available_now=True))
    sizes, ids = [], []
    while not reader.exhausted():
        batch = reader.read(65_536, NOW_US)
        if batch is not None:
            sizes.append(batch.num_rows)
            ids += batch.column(0).to_pylist()
    assert ids == list(range(200_000))
    assert len(sizes) > 3


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"id": 1, "tags": ["a"]}, {"id": 2}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert drain(Files(tmp_path)) == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}]
    assert drain(Files(tmp_path, schema="id BIGINT")) == [{"id": 1}, {"id": 2}]


def test_given_schema_is_a_projection_with_safe_casts(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [1], y=["no"], z=[b"no"])
    pq.write_table(pa.table({"x": pa.array([2], pa.int16())}), tmp_path / "b.parquet")
    source = Files(tmp_path, schema=pa.schema({"x": pa.int32()}))
    assert sorted(row["x"] for row in drain(source)) == [1, 2]
    parquet(tmp_path / "c.parquet", [2**40])
    with pytest.raises(SourceError, match=r"c\.parquet: column 'x' is int64, expected int32"):
        drain(source)


def test_dictionaries_are_decoded(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [1], name=pa.array(["n"]).dictionary_encode())
    assert Files(tmp_path).schema == pa.schema({"x": pa.int64(), "name": pa.string()})
    assert drain(Files(tmp_path)) == [{"x": 1, "name": "n"}]


@pytest.mark.parametrize(
    ("second", "column", "words"),
    [
        ({"x": pa.array([1], pa.int32())}, "x", "column 'x' is int32, expected int64"),
        ({"y": pa.array([1])}, "x", "column 'x' is missing; the file has [y]"),
        ({"x": [1], "y": [2]}, "y", "column 'y' is not in the first file"),
    ],
)
def test_later_file_with_another_schema_is_refused(
    tmp_path: Path, second: dict[str, Any], column: str, words: str
) -> None:
    os.utime(parquet(tmp_path / "a.parquet", [1]), (0, 0))
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    with pytest.raises(SourceError) as raised:
        drain(Files(tmp_path))
    assert "b.parquet" in str(raised.value)
    assert words in str(raised.value)
    assert raised.value.parameters["column"] == column


@pytest.mark.parametrize(
    ("name", "first", "second", "column"),
    [
        ("csv", "id,name\n1,x\n", "id,name\n2,y\nabc,z\n", "id"),
        ("csv", "id,name\n1,x\n", "name,id\ny,2\nz,abc\n", "id"),
        ("csv", "id,name\n1,x\n", "id\n1\n", "name"),
        ("csv", "id,name\n1,x\n", "id,name,more\n1,x,y\n", "more"),
        ("json", '{"id": 1}\n', '{"id": 2}\n{"id": "x"}\n', "id"),
        ("json", '{"id": 1}\n', '{"id": 2}\n{"id": 3, "more": 1}\n', "more"),
    ],
)
def test_later_text_file_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, first: str, second: str, column: str
) -> None:
    (tmp_path / f"a.{name}").write_text(first)
    os.utime(tmp_path / f"a.{name}", (0, 0))
    (tmp_path / f"b.{name}").write_text(second)
    with pytest.raises(SourceError) as raised:
        drain(Files(tmp_path))
    assert f"b.{name}" in str(raised.value)
    assert raised.value.parameters["column"] == column


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "middle":
        data[8:200] = b"\xff" * 192
    elif how == "footer":
        data[-20:-8] = b"\xff" * 12
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["middle", "footer", "cut"])
def test_corrupt_parquet_is_refused_by_name(tmp_path: Path, how: str) -> None:
    os.utime(parquet(tmp_path / "a.parquet", [1]), (0, 0))
    damage(parquet(tmp_path / "bad.parquet", list(range(1000))), how)
    source = Files(tmp_path)
    with pytest.raises(SourceError, match=r"bad\.parquet cannot be read as parquet.*onCorrupt"):
        drain(source)


def test_corrupt_first_file_is_refused_while_building(tmp_path: Path) -> None:
    damage(parquet(tmp_path / "bad.parquet", list(range(1000))), "cut")
    with pytest.raises(SourceError, match=r"bad\.parquet cannot be read"):
        Files(tmp_path)


def test_corrupt_files_can_be_skipped_and_stay_skipped(tmp_path: Path) -> None:
    os.utime(parquet(tmp_path / "a.parquet", [1, 2]), (0, 0))
    path = tmp_path / "b.parquet"
    pq.write_table(
        pa.table({"x": list(range(3000))}),
        path,
        row_group_size=1000,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    os.utime(path, (1, 1))
    os.utime(parquet(tmp_path / "c.parquet", [7]), (2, 2))
    source = Files(tmp_path, onCorrupt="skip")
    reader = source.open(SourceContext(0, 1, available_now=True))
    found = values(reader)
    assert found == [1, 2, *range(1000), 7]
    assert reader.counters["files_skipped"] == 1
    position, journal = reader.position(), [json.loads(json.dumps(reader.journal()))]
    assert journal[0]["skipped"] == [[1, 1000]]
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)  # mended: what was skipped must stay so when it is read again
    os.utime(path, (1, 1))
    again = source.open(SourceContext(0, 1, journal=journal))
    repeated = []
    while (batch := again.read(333, NOW_US, position)) is not None:
        repeated += batch.column(0).to_pylist()
    assert repeated == found


def test_changed_or_missing_files_are_refused_on_replay(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", [1, 2, 3])
    source = Files(tmp_path)
    reader = source.open(SourceContext(0, 1))
    assert values(reader) == [1, 2, 3]
    position, journal = reader.position(), [reader.journal()]
    parquet(path, list(range(500)))
    with pytest.raises(SourceError, match=r"a\.parquet had \d+ bytes when it was found"):
        source.open(SourceContext(0, 1, journal=journal)).read(10, NOW_US, position)
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.parquet is gone"):
        source.open(SourceContext(0, 1, journal=journal)).read(10, NOW_US, position)
    done = source.open(SourceContext(0, 1, position=position, journal=journal))
    assert values(done) == []  # what was read to its end may go


def test_empty_text_files_have_no_rows(tmp_path: Path) -> None:
    for name in ("csv", "json"):
        (tmp_path / f"a.{name}").write_text("")
        assert (
            drain(Files(tmp_path, format=name, schema="x BIGINT", pathGlobFilter=f"*.{name}")) == []
        )
        with pytest.raises(SourceError, match="is empty: its columns are unknown"):
            Files(tmp_path / f"a.{name}")


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [1])
    with pytest.raises(SourceError, match="nowhere does not exist"):
        Files(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="nowhere does not exist"):
        Files(tmp_path / "nowhere", format="csv", schema="x INT").check()
    with pytest.raises(SourceError, match=r"s3://b/x is not a path"):
        Files("s3://b/x")
    with pytest.raises(SettingsError, match="unknown format 'orc'"):
        Files(tmp_path, format="orc", schema="x INT")
    with pytest.raises(SettingsError, match="no option 'header' for format parquet"):
        Files(tmp_path, header=True)
    with pytest.raises(SettingsError, match="onCorrupt must be"):
        Files(tmp_path, onCorrupt="ignore")
    with pytest.raises(SchemaError):
        Files(tmp_path, schema=17)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds no file to infer the schema from"):
        Files(tmp_path / "empty")
    assert drain(Files(tmp_path / "empty", format="csv", schema="x INT")) == []


def test_changed_number_of_shards_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [1])
    source = Files(tmp_path)
    reader = source.open(SourceContext(0, 1))
    values(reader)
    with pytest.raises(SourceError, match="1 shards, now there are 2"):
        source.open(SourceContext(0, 2, journal=[reader.journal()]))

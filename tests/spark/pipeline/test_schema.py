import pytest

from gnsq.spark.pipeline.schema import EventSchema

FIELDS = {"user": "string", "page": "string"}


def test_all_fields_are_required_unless_named_and_keys_always():
    assert EventSchema(FIELDS, "time", ("page",)).required == ("page", "user")
    assert EventSchema(FIELDS, "time", ("page",), ()).required == ("page",)
    assert EventSchema(FIELDS, "time", ("page",), ("page", "user")).required == ("page", "user")
    assert EventSchema(FIELDS, "time", (), ("user",)).required == ("user",)


def test_ddl_has_the_time_and_a_place_for_what_can_not_be_read():
    schema = EventSchema({"n": "decimal(5, 2)"}, "at", ("n",))

    assert schema.ddl() == "`n` decimal(5, 2), `at` string, `_malformed` string"
    assert schema.ddl(as_strings=True) == "`n` string, `at` string, `_malformed` string"


@pytest.mark.parametrize(
    ("fields", "time", "key", "required", "words"),
    [
        pytest.param({"a-b": "int"}, "time", "a-b", None, "fields: 'a-b' is not made of letters", id="name"),
        pytest.param({"Hour": "int"}, "time", "Hour", None, "'Hour' is a column of the job's own", id="reserved"),
        pytest.param({"a": "map<int,int>"}, "time", "a", None, "a has the type 'map<int,int>', one of", id="type"),
        pytest.param({"a": "timestamp_ntz"}, "time", "a", None, "type 'timestamp_ntz', which says no", id="ntz"),
        pytest.param({"a": "decimal(39,1)"}, "time", "a", None, "'decimal", id="precision"),
        pytest.param({"a": "decimal(3,4)"}, "time", "a", None, "'decimal", id="scale"),
        pytest.param({"a": "int", "A": "int"}, "time", "a", None, "fields: a is there twice", id="case"),
        pytest.param({"a": "int"}, "a", "a", None, "time_field 'a' is one of fields", id="time is a field"),
        pytest.param({"a": "int"}, "a b", "a", None, "time_field: 'a b'", id="time"),
        pytest.param({"a": "int"}, "time", "b", None, "setting metrics: key 'b' is none of fields: a", id="key"),
        pytest.param({"a": "int"}, "time", "a", ("c",), "required_fields 'c' is none of fields", id="required"),
    ],
)
def test_bad_schema_is_named(fields, time, key, required, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        EventSchema(fields, time, (key,), required)

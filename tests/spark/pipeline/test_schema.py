import pytest

from gnsq.spark.pipeline.schema import EventSchema, parse_fields

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
        pytest.param({"a": "int"}, "_malformed", "a", None, "time_field: '_malformed' is", id="time of the job"),
        pytest.param({"a": "int"}, "time", "b", None, "setting metrics: key 'b' is none of fields: a", id="key"),
        pytest.param({"a": "int"}, "time", "a", ("c",), "required_fields 'c' is none of fields", id="required"),
    ],
)
def test_bad_schema_is_named(fields, time, key, required, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        EventSchema(fields, time, (key,), required)


@pytest.mark.parametrize(
    ("text", "fields", "required"),
    [
        pytest.param("user STRING, page STRING NOT NULL", {"user": "STRING", "page": "STRING"}, ("page",), id="DDL"),
        pytest.param(
            "-- of clicks, not of views\n`user`: string COMMENT 'a, -- not null',\nn decimal(5, 2) not null\n",
            {"user": "string", "n": "decimal(5, 2)"},
            ("n",),
            id="DDL with comments",
        ),
        pytest.param("time TIMESTAMP NOT NULL, n INT NOT NULL", {"n": "INT"}, ("n",), id="DDL with the time"),
        pytest.param("a INT, b INT", {"a": "INT", "b": "INT"}, None, id="DDL without NOT NULL"),
        pytest.param(
            """{"type": "object", "required": ["time", "s"], "additionalProperties": false, "properties": {
                "time": {"type": "string", "format": "date-time"}, "i": {"type": "integer", "minimum": 0},
                "s": {"type": "string", "pattern": "^/"}, "n": {"type": ["null", "number"]}, "b": {"type": "boolean"},
                "d": {"type": "string", "format": "date"}, "t": {"type": "string", "format": "date-time"},
                "e": {"type": "string", "format": "email", "enum": ["a"]}}}""",
            {
                "i": "bigint",
                "s": "string",
                "n": "double",
                "b": "boolean",
                "d": "date",
                "t": "timestamp",
                "e": "string",
            },
            ("s",),
            id="JSON Schema",
        ),
        pytest.param('{"properties": {"a": {"type": "string"}}}', {"a": "string"}, None, id="JSON Schema, no required"),
    ],
)
def test_fields_of_a_file(text, fields, required):
    assert parse_fields(text, "time") == (fields, required)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a INT, tags ARRAY<STRING>", r"'tags ARRAY<STRING>' is not understood: .* bigint, ", id="array"),
        pytest.param("a INT b INT", "'a INT b INT' is not understood", id="no comma"),
        pytest.param("a INT, a STRING", "a is there twice", id="twice"),
        pytest.param(" ", "there are no fields", id="nothing"),
        pytest.param("time INT, a INT", "time has the type 'INT': the event's time is a string", id="time"),
        pytest.param("{", "Expecting", id="no JSON"),
        pytest.param('{"type": "array"}', "not that of an object", id="no object"),
        pytest.param('{"properties": {}, "required": 5}', "not that of an object", id="required is no list"),
        pytest.param(
            '{"properties": {}, "required": ["a"]}', "a is required, and is none of properties", id="required"
        ),
        pytest.param('{"allOf": []}', "the schema has allOf, by which its type", id="composed"),
        *(
            pytest.param(f'{{"properties": {{"a": {kind}}}, "required": ["a"]}}', words, id=kind)
            for kind, words in (
                ('{"type": "object"}', "a has the type 'object': one of string, integer, number, boolean"),
                ('{"type": "array"}', "a has the type 'array'"),
                ('{"type": ["string", "integer"]}', r"a has the type \['string', 'integer'\]"),
                ('{"type": ["string", "null"]}', "a is required and may be null"),
                ('{"enum": [1, {}]}', "a has the type None"),
                ("true", "a has the type None"),
                ('{"$ref": "#/x"}', r"a has \$ref, by which its type can't be told"),
                ('{"type": "string", "anyOf": []}', "a has anyOf"),
            )
        ),
    ],
)
def test_bad_file_of_fields_is_named(text, words):
    with pytest.raises(ValueError, match=words):
        parse_fields(text, "time")

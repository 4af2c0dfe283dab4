"""Patterns as Go's regexp takes them; what is expected here was asked of Go."""

import pytest

from fakensqd.re2 import compile_re2


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", "anything"),
        (".*", "x"),
        ("oo", "good"),
        ("^a$", "a"),
        ("^*a", "ba"),
        (r"\Aa\z", "a"),
        (r"\ba\B.", "x-ab"),
        (r"\B", ""),
        ("a|b", "b"),
        ("(a)(?:b)(?P<n>c)(?<m>d)", "abcd"),
        ("(?i)ABC", "abc"),
        ("(?i:A)B", "aB"),
        ("(?i)a(?-i)b", "Ab"),
        ("(a|(?i)b)C", "BC"),
        ("x(?i)a|b", "B"),
        ("(?Us-m:a+)", "a"),
        (r"\Qa.b*\E+", "a.b*"),
        (r"\Qa.", "a."),
        ("a{2}b{1,}c{1,2}d??", "aabcc"),
        ("a{,5}", "a{,5}"),
        ("a{01}", "a{01}"),
        ("]}", "]}"),
        (r"\d\D\s?\S\w\W", "1aaa-"),
        (r"\x41\x{42}\103\0?", "ABC"),
        (r"\t?\.\-\_", ".-_"),
        ("[]a]", "]"),
        ("[^]a]", "b"),
        ("[a-c-]", "-"),
        (r"[\x61-\x63\d\]]", "]"),
        (r"[\t[.#&|~^-]", "#"),
        ("[[:alpha:]_]", "_"),
        ("[[:^alpha:]]", "1"),
    ],
)
def test_what_go_takes(pattern, text):
    assert compile_re2(pattern).search(text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("a$", "ab"), ("^b", "ab"), ("(?i:a)b", "AB"), ("(a|(?i)b)C", "Ac"), ("[[:^alpha:]]", "a"), (r"\.", "x")],
)
def test_what_does_not_match(pattern, text):
    assert not compile_re2(pattern).search(text)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a)",
        "[",
        "[[:foo:]]",
        "[$[:word:]",
        "[z-a]",
        r"[a-\d]",
        "[a-[:alpha:]]",
        r"[\z]",
        "*",
        "a**",
        "a++",
        "a|*",
        "a{3,2}",
        "a{1001}",
        "a{2}{3}",
        "(?=a)",
        "(?<!a)",
        r"(a)\1",
        "(?P=n)",
        "(?P<n>a)(?P<n>b)",
        "(?)",
        "(?#x)",
        r"\Z",
        r"\x{110000}",
        "\\",
        "(" * 2000 + ")" * 2000,
    ],
)
def test_what_go_refuses(pattern):
    with pytest.raises(ValueError, match=r"^pattern "):
        compile_re2(pattern)

from loadtest.plain_run import wrong_answers_text


def test_wrong_answers_come_with_what_may_be_behind_them():
    assert wrong_answers_text(3).startswith("3 (")
    assert "is --table-rows the --rows" in wrong_answers_text(3)
    assert [wrong_answers_text(0), wrong_answers_text(None)] == ["0", "not looked at"]

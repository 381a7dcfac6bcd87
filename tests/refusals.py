"""Tables of calls that are refused."""

import pytest

import gin_estimator as ge


def refused(call, *rows, error=ge.UserError, fixtures=()):
    """Returns a test of each row: values that `call` gets, and last words of the message.

    The words are a regular expression. They have the remedy, or the values that were expected.
    `call` gets the fixtures first.
    """

    @pytest.mark.parametrize("row", rows, ids=lambda row: row[-1])
    def test(row, request):
        *values, text = row
        given = [request.getfixturevalue(name) for name in fixtures]
        with pytest.raises(error, match=text):
            call(*given, *values)

    return test

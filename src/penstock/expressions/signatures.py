"""The signatures of PySpark's functions, one a line.

A parameter takes a column, the name of one, or a constant that is no string.  ``: value`` takes
constants, strings among them; ``: function`` takes a function of columns.  ``-> name`` is the name
in SQL where it is another one, with parameters if they come in another order.

What the functions compute is in the table of :mod:`penstock.expressions.functions`; aggregates are
in :mod:`penstock.operators.aggregate_functions`.
"""

# ruff: noqa: E501
from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cached_property

__all__ = ["GROUPS", "SIGNATURES", "Signature"]


class Signature:
    """A function's name, parameters, and what each parameter takes.

    >>> Signature("substring_index(str, delim: value, count: value)").kinds
    {'str': 'column', 'delim': 'value', 'count': 'value'}
    """

    def __init__(self, line: str) -> None:
        self._text, _, target = line.partition(" -> ")
        self.name = self._text.partition("(")[0]
        self.sql, _, order = (target or self.name).partition("(")
        """The name in SQL."""
        self.order = order.rstrip(")").split(", ") if order else None
        """The parameters in the order of SQL, where that is another one."""

    def __str__(self) -> str:
        return f"{self.name}{self.parameters}"

    @cached_property
    def _parsed(self) -> ast.arguments:
        made = ast.parse(f"def {self._text}: ...").body[0]
        return made.args  # type: ignore[attr-defined]

    @cached_property
    def kinds(self) -> dict[str, str]:
        """What each parameter takes: ``column``, ``value`` or ``function``."""
        found = self._parsed
        every = [*found.args, *([found.vararg] if found.vararg else []), *found.kwonlyargs]
        return {
            one.arg: ast.unparse(one.annotation) if one.annotation else "column" for one in every
        }

    @cached_property
    def parameters(self) -> inspect.Signature:
        """The parameters as Python has them."""
        found, kinds = self._parsed, inspect.Parameter
        first = len(found.args) - len(found.defaults)
        made = [
            kinds(
                one.arg,
                kinds.POSITIONAL_OR_KEYWORD,
                default=ast.literal_eval(found.defaults[i - first]) if i >= first else kinds.empty,
            )
            for i, one in enumerate(found.args)
        ]
        if found.vararg:
            made.append(kinds(found.vararg.arg, kinds.VAR_POSITIONAL))
        return inspect.Signature(made)


class _Table(Mapping[str, Signature]):
    """Signatures by name; a line is read when it is asked for."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self._lines = lines

    def __getitem__(self, name: str) -> Signature:
        return Signature(self._lines[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


GROUPS = {
    "Choices": """
assert_true(col, errMsg: value = None)
coalesce(*cols)
equal_null(col1, col2)
greatest(*cols)
ifnull(col1, col2)
isnan(col)
isnotnull(col)
isnull(col)
least(*cols)
nanvl(col1, col2)
nullif(col1, col2)
nullifzero(col)
nvl(col1, col2)
nvl2(col1, col2, col3)
raise_error(errMsg: value)
typeof(col)
zeroifnull(col)
""",
    "Numbers": """
abs(col)
acos(col)
acosh(col)
asin(col)
asinh(col)
atan(col)
atan2(col1, col2)
atanh(col)
bin(col)
bit_count(col)
bit_get(col, pos)
bitwise_not(col)
bitwiseNOT(col) -> bitwise_not
bround(col, scale=None)
cbrt(col)
ceil(col, scale=None)
ceiling(col, scale=None)
conv(col, fromBase, toBase)
cos(col)
cosh(col)
cot(col)
csc(col)
degrees(col)
e()
exp(col)
expm1(col)
factorial(col)
floor(col, scale=None)
getbit(col, pos)
hex(col)
hypot(col1, col2)
ln(col)
log(arg1, arg2=None)
log10(col)
log1p(col)
log2(col)
negate(col)
negative(col)
pi()
pmod(dividend, divisor)
positive(col)
pow(col1, col2)
power(col1, col2)
radians(col)
rint(col)
round(col, scale=None)
sec(col)
shiftLeft(col, numBits) -> shiftleft
shiftleft(col, numBits)
shiftright(col, numBits)
shiftRight(col, numBits) -> shiftright
shiftRightUnsigned(col, numBits) -> shiftrightunsigned
shiftrightunsigned(col, numBits)
sign(col)
signum(col)
sin(col)
sinh(col)
sqrt(col)
tan(col)
tanh(col)
toDegrees(col) -> degrees
toRadians(col) -> radians
try_add(left, right)
try_divide(left, right)
try_mod(left, right)
try_multiply(left, right)
try_subtract(left, right)
unhex(col)
width_bucket(v, min, max, numBucket)
""",
    "Strings": """
ascii(col)
base64(col)
bit_length(col)
btrim(str, trim=None)
char(col)
char_length(str)
character_length(str)
chr(n)
concat(*cols)
concat_ws(sep: value, *cols)
contains(left, right)
decode(col, charset: value)
elt(*inputs)
encode(col, charset: value)
endswith(str, suffix)
find_in_set(str, str_array)
format_string(format: value, *cols)
ilike(str, pattern, escapeChar=None)
initcap(col)
instr(str, substr: value, start=None, occurrence=None)
is_valid_utf8(str)
lcase(str)
left(str, len)
length(col)
levenshtein(left, right, threshold=None)
like(str, pattern, escapeChar=None)
locate(substr: value, str, pos=1)
lower(col)
lpad(col, len, pad: value)
ltrim(col, trim=None) -> ltrim(trim, col)
mask(col, upperChar=None, lowerChar=None, digitChar=None, otherChar=None)
octet_length(col)
overlay(src, replace, pos, len=-1)
position(substr, str, start=None)
printf(format, *cols)
quote(col)
regexp(str, regexp)
regexp_count(str, regexp)
regexp_extract(str, pattern: value, idx)
regexp_extract_all(str, regexp, idx=None)
regexp_instr(str, regexp, idx=None)
regexp_like(str, regexp)
regexp_replace(string, pattern: value, replacement: value, position=None)
regexp_substr(str, regexp)
repeat(col, n)
replace(src, search, replace=None)
right(str, len)
rlike(str, regexp)
rpad(col, len, pad: value)
rtrim(col, trim=None) -> rtrim(trim, col)
soundex(col)
split(str, pattern: value, limit=-1)
split_part(src, delimiter, partNum)
startswith(str, prefix)
str_to_map(text, pairDelim=None, keyValueDelim=None)
substr(str, pos, len=None)
substring(str, pos, len)
substring_index(str, delim: value, count)
to_binary(col, format=None)
translate(srcCol, matching: value, replace: value)
trim(col, trim=None) -> trim(trim, col)
ucase(str)
unbase64(col)
upper(col)
url_encode(str)
""",
    "Dates and times": """
add_months(start, months)
convert_timezone(sourceTz, targetTz, sourceTs)
current_timezone()
date_add(start, days)
date_diff(end, start)
date_format(date, format: value)
date_from_unix_date(days)
date_part(field, source)
date_sub(start, days)
date_trunc(format: value, timestamp)
dateadd(start, days)
datediff(end, start)
datepart(field, source)
day(col)
dayname(col)
dayofmonth(col)
dayofweek(col)
dayofyear(col)
extract(field, source)
from_unixtime(timestamp, format: value = 'yyyy-MM-dd HH:mm:ss')
from_utc_timestamp(timestamp, tz: value)
hour(col)
last_day(date)
make_date(year, month, day)
make_dt_interval(days=None, hours=None, mins=None, secs=None)
make_timestamp(years=None, months=None, days=None, hours=None, mins=None, secs=None, timezone=None, date=None, time=None)
make_timestamp_ltz(years, months, days, hours, mins, secs, timezone=None)
make_timestamp_ntz(years=None, months=None, days=None, hours=None, mins=None, secs=None, date=None, time=None)
minute(col)
month(col)
monthname(col)
months_between(date1, date2, roundOff=True)
next_day(date, dayOfWeek: value)
quarter(col)
second(col)
timestamp_add(unit: value, quantity, ts)
timestamp_diff(unit: value, start, end)
timestamp_micros(col)
timestamp_millis(col)
timestamp_seconds(col)
to_date(col, format: value = None)
to_timestamp(col, format: value = None)
to_timestamp_ltz(timestamp, format=None)
to_timestamp_ntz(timestamp, format=None)
to_unix_timestamp(timestamp, format=None)
to_utc_timestamp(timestamp, tz: value)
trunc(date, format: value)
try_make_timestamp(years=None, months=None, days=None, hours=None, mins=None, secs=None, timezone=None, date=None, time=None)
try_make_timestamp_ltz(years, months, days, hours, mins, secs, timezone=None)
try_make_timestamp_ntz(years=None, months=None, days=None, hours=None, mins=None, secs=None, date=None, time=None)
try_to_date(col, format: value = None)
try_to_timestamp(col, format=None)
unix_date(col)
unix_micros(col)
unix_millis(col)
unix_seconds(col)
unix_timestamp(timestamp=None, format: value = 'yyyy-MM-dd HH:mm:ss')
weekday(col)
weekofyear(col)
window_time(windowColumn)
year(col)
""",
    "Arrays": """
aggregate(col, initialValue, merge: function, finish: function = None)
array(*cols)
array_append(col, value: value)
array_compact(col)
array_contains(col, value: value)
array_distinct(col)
array_except(col1, col2)
array_insert(arr, pos, value: value)
array_intersect(col1, col2)
array_join(col, delimiter: value, null_replacement: value = None)
array_max(col)
array_min(col)
array_position(col, value: value)
array_prepend(col, value: value)
array_remove(col, element: value)
array_repeat(col, count)
array_size(col)
array_sort(col, comparator: function = None)
array_union(col1, col2)
arrays_overlap(a1, a2)
arrays_zip(*cols)
cardinality(col)
element_at(col, extraction: value)
exists(col, f: function)
filter(col, f: function)
flatten(col)
forall(col, f: function)
get(col, index)
reduce(col, initialValue, merge: function, finish: function = None)
reverse(col)
sequence(start, stop, step=None)
size(col)
slice(x, start, length)
sort_array(col, asc=True)
transform(col, f: function)
try_element_at(col, extraction)
zip_with(left, right, f: function)
""",
    "Maps and structs": """
create_map(*cols) -> map
map_concat(*cols)
map_contains_key(col, value: value)
map_entries(col)
map_filter(col, f: function)
map_from_arrays(col1, col2)
map_from_entries(col)
map_keys(col)
map_values(col)
named_struct(*cols)
struct(*cols)
transform_keys(col, f: function)
transform_values(col, f: function)
""",
    "JSON and CSV": """
from_json(col, schema: value, options: value = None)
get_json_object(col, path: value)
json_array_length(col)
json_object_keys(col)
to_json(col, options: value = None)
""",
    "Hashes": """
crc32(col)
hash(*cols)
md5(col)
sha(col)
sha1(col)
sha2(col, numBits)
xxhash64(*cols)
""",
    "Rows from a row": """
explode(col)
explode_outer(col)
inline(col)
inline_outer(col)
posexplode(col)
posexplode_outer(col)
""",
    "Aggregates": """
any_value(col, ignoreNulls=None)
approx_count_distinct(col, rsd: value = None)
approx_percentile(col, percentage: value, accuracy=10000)
approxCountDistinct(col, rsd: value = None) -> approx_count_distinct
array_agg(col)
avg(col)
bit_and(col)
bit_or(col)
bit_xor(col)
bool_and(col)
bool_or(col)
collect_list(col)
collect_set(col)
corr(col1, col2)
count(col)
count_distinct(col, *cols)
count_if(col)
countDistinct(col, *cols) -> count_distinct
covar_pop(col1, col2)
covar_samp(col1, col2)
every(col)
first(col, ignorenulls=False)
first_value(col, ignoreNulls=None)
kurtosis(col)
last(col, ignorenulls=False)
last_value(col, ignoreNulls=None)
listagg(col, delimiter: value = None)
listagg_distinct(col, delimiter: value = None)
max(col)
max_by(col, ord, k=None)
mean(col)
median(col)
min(col)
min_by(col, ord, k=None)
mode(col, deterministic=False)
percentile(col, percentage: value, frequency=1)
percentile_approx(col, percentage: value, accuracy=10000)
regr_avgx(y, x)
regr_avgy(y, x)
regr_count(y, x)
regr_intercept(y, x)
regr_r2(y, x)
regr_slope(y, x)
regr_sxx(y, x)
regr_sxy(y, x)
regr_syy(y, x)
skewness(col)
some(col)
std(col)
stddev(col)
stddev_pop(col)
stddev_samp(col)
string_agg(col, delimiter: value = None)
string_agg_distinct(col, delimiter: value = None)
sum(col)
sum_distinct(col)
sumDistinct(col) -> sum_distinct
try_avg(col)
var_pop(col)
var_samp(col)
variance(col)
""",
}
"""Signatures by what the functions are about."""

SIGNATURES = _Table(
    {
        line.partition("(")[0]: line
        for lines in GROUPS.values()
        for line in lines.strip().splitlines()
    }
)

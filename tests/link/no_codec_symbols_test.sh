#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves by the linker that whatever sums planes cannot decode them: neither a program that links all of `aggregate` and `fold`, nor
# the archives of the modules that sum, know a symbol of a codec; and that the check would notice one, by looking at a library that
# has them.  usage: no_codec_symbols_test.sh CODEC_ARCHIVE ADDER ARCHIVE...
set -euo pipefail
codec='addend::(exact|SteppedCodec|CodecSpec|create_codec|Codec)\b'
count() { nm -C "$1" 2>/dev/null | grep -cE "$codec" || true; }
codec_archive=$1 adder=$2
shift
for file in "$@"; do
  found=$(count "$file")
  [ "$found" -eq 0 ] || { echo "$file knows $found codec symbols:"; nm -C "$file" | grep -E "$codec" | head; exit 1; }
done
[ "$(count "$codec_archive")" -gt 50 ] || { echo "the pattern finds no codec symbols in $codec_archive: this test cannot fail"; exit 1; }
"$adder"
echo "$# adders know no codec; $(count "$codec_archive") codec symbols in the codec's own archive"

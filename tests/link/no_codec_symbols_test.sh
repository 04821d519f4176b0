#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves by the linker that whatever sums planes cannot decode them: neither a program that links all of `fold`, nor the archives of
# `fold` and `file`, know a symbol of a codec; and that the check would notice one, by looking at a library that has them.
# usage: no_codec_symbols_test.sh ADDER FOLD_ARCHIVE FILE_ARCHIVE CODEC_ARCHIVE
set -euo pipefail
codec='addend::(exact|SteppedCodec|CodecSpec|create_codec|Codec)\b'
count() { nm -C "$1" 2>/dev/null | grep -cE "$codec" || true; }
for file in "$1" "$2" "$3"; do
  found=$(count "$file")
  [ "$found" -eq 0 ] || { echo "$file knows $found codec symbols:"; nm -C "$file" | grep -E "$codec" | head; exit 1; }
done
[ "$(count "$4")" -gt 50 ] || { echo "the pattern finds no codec symbols in $4: this test cannot fail"; exit 1; }
"$1"
echo "fold and file know no codec; $(count "$4") codec symbols in the codec's own archive"

# SPDX-License-Identifier: Apache-2.0
"""Writes a C file that holds INPUT's bytes as the array NAME, and their number as NAME_size."""
import sys

name, source, target = sys.argv[1:]
with open(source, 'rb') as f:
    data = f.read()
rows = [', '.join(f"'\\x{byte:02x}'" for byte in data[i:i + 16]) for i in range(0, len(data), 16)]
with open(target, 'w', encoding='ascii') as f:
    f.write('#include <stddef.h>\n\n')
    f.write(f'extern const char {name}[];\nextern const size_t {name}_size;\n\n')
    f.write(f'const char {name}[] = {{\n  ' + ',\n  '.join(rows) + '\n};\n')
    f.write(f'const size_t {name}_size = sizeof({name});\n')

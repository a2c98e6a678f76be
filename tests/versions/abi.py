# SPDX-License-Identifier: Apache-2.0
"""Holds the shim's tables (shim/hooks.h, shim/abi/) against one version's headers and libraries.

The tables are read by the preprocessor. Every row that a version's headers know becomes one line of a C file, so an
error of the compiler names the row. A row that they do not know is judged by what the shim needs from that version.
"""

import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What a version cannot do without: the rest came later, or is not there, and is then not called.
NCCL_CORE = set(
    "ncclAllGather ncclReduceScatter ncclAllReduce ncclBroadcast ncclBcast ncclReduce ncclSend ncclRecv ncclGroupStart "
    "ncclGroupEnd ncclRedOpCreatePreMulSum ncclRedOpDestroy ncclCommInitRank ncclCommInitRankConfig ncclCommInitAll "
    "ncclCommSplit ncclCommFinalize ncclCommDestroy ncclCommAbort ncclCommGetAsyncError ncclGetVersion ncclCommCount "
    "ncclCommUserRank".split())
# What child communicators and windows are made of; a version that gets them has to have it.
NCCL_WINDOWS = {"ncclCommWindowRegister", "ncclCommWindowDeregister"}
# What the shim reads in a configuration of the job's, whatever the version.
CONFIG_READ = {"magic", "blocking"}

TABLES = """
#include "shim/hooks.h"
#define CONSTANT(name, value) @constant|~|name|~|value@
#define FIELD(type, member, at) @field|~|type|~|member|~|at@
#define HOOKED(library, name, ret, params, args, missing) @hooked|~|library|~|name|~|ret|~|params@
#define UNHOOKED(library, name, ret, params, args, missing) @called|~|library|~|name|~|ret|~|params@
#define DRIVER(name, params) @driver|~|CUDA|~|name|~|CUresult|~|params@
ABI_CUDA_CONSTANTS(CONSTANT) ABI_CUDA_FIELDS(FIELD) ABI_DRIVER_FUNCTIONS(DRIVER)
ABI_NCCL_CONSTANTS(CONSTANT) ABI_NCCL_FIELDS(FIELD) ABI_NCCL_FIELDS_LATER(FIELD) HOOKS(HOOKED) CALLED(UNHOOKED)
"""


class Row:
    """A line of the tables: what it asserts of the headers."""

    def __init__(self, kind, parts):
        self.kind = kind
        self.library = parts.pop(0) if kind in ("hooked", "called", "driver") else None
        if self.library:
            self.name, self.ret, self.params = parts
            self.line = (f"_Static_assert(__builtin_types_compatible_p(__typeof__(&{self.name}), "
                         f'{self.ret}(*){self.params}), "prototype");')
        elif kind == "field":
            self.type, self.field, self.at = parts
            self.name = f"{self.type}.{self.field}"
            self.line = f'_Static_assert(offsetof({self.type}, {self.field}) == ({self.at}), "offset");'
        elif kind == "size":
            (self.name,) = parts
            self.line = f'_Static_assert({self.name}, "size");'
        else:
            self.name, value = parts
            self.line = f'_Static_assert((long long)({self.name}) == (long long)({value}), "value");'
        self.is_nccl = self.name.lower().removeprefix("sizeof(").startswith("nccl")

    def is_known(self, words):
        if self.kind == "field":
            return self.type in words and self.field.split(".")[-1] in words
        if self.kind == "size":
            return words.issuperset(re.findall(r"sizeof\((\w+)\)", self.name))
        return self.name in words


def preprocess(text, *options):
    return subprocess.run(["cc", "-E", "-P", "-x", "c", *options, "-"], input=text, check=True, capture_output=True,
                          text=True).stdout


def tables():
    rows = []
    for found in re.findall(r"@((?:constant|field|hooked|called|driver)\|[^@]*)@", preprocess(TABLES, f"-I{ROOT}")):
        kind, *parts = (part.strip() for part in found.split("|~|"))
        rows.append(Row(kind, parts))
    # Object-like macros of NCCL's that the shim declares for itself, and the sizes that it asserts.
    for name in ("cuda.h", "nccl.h"):
        text = (ROOT / "shim/abi" / name).read_text()
        rows += [Row("macro", list(found)) for found in re.findall(r"^#define (NCCL_\w+) (.+)$", text, re.MULTILINE)]
        rows += [Row("size", [re.sub(r"\s+", " ", found)])
                 for found in re.findall(r'^_Static_assert\((sizeof[^"]*),\s*"', text, re.MULTILINE)]
    lost = {"constant", "field", "hooked", "called", "driver", "macro", "size"} - {row.kind for row in rows}
    if lost:
        raise RuntimeError(f"no row is of the kind {', '.join(lost)}")
    return rows


def plan_number(name):
    """A version that the shim's plan knows by name, as NCCL counts."""
    return int(re.search(rf"{name} = (\d+)", (ROOT / "shim/plan.c").read_text())[1])


def known_names():
    """What the shim knows of NCCL's functions, hooked, called or left alone."""
    text = preprocess('#include "shim/exports.c"\n', f"-I{ROOT}", "-DSYMMSHIM_VERSION")
    return set(re.findall(r"nccl\w+", re.search(r"static const char known\[\] =(.*?);", text, re.DOTALL)[1]))


def newest_known():
    return int(re.search(r"#define ABI_NCCL_NEWEST (\d+)", (ROOT / "shim/abi/nccl.h").read_text())[1])


def takes_as_unset(settings):
    """Whether the shim takes these bytes, the settings of a call, for ones that ask for nothing."""
    program = """
#include "shim/collconfig.c"
static const _Alignas(16) unsigned char bytes[] = {%s};
int main(void) { return collconfig_is_unset((const void *)bytes) ? 0 : 1; }
""" % ",".join(map(str, settings))
    with tempfile.TemporaryDirectory(prefix="symmshim-versions-") as folder:
        subprocess.run(["cc", "-x", "c", f"-I{ROOT}", "-o", f"{folder}/unset", "-"], input=program, check=True,
                       text=True)
        return subprocess.run([f"{folder}/unset"], check=False).returncode == 0


def used_in_shim():
    """The words of the shim's own sources, the declarations left out."""
    folder = ROOT / "shim"
    return {word for path in folder.glob("*.[ch]") for word in re.findall(r"\w+", path.read_text())}


def symbols(library, defined):
    """Names that a shared object has for others, or wants of others, without their versions."""
    text = subprocess.run(["readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in text.splitlines())
    return {row[7].split("@")[0] for row in rows
            if len(row) > 7 and row[4] in ("GLOBAL", "WEAK") and (row[6] != "UND") == defined}


class Headers:
    """One version's headers, preprocessed."""

    def __init__(self, include, folders):
        self.include = include
        # Up to 2.23 NCCL's types for these formats stand behind what only C++ headers define.
        self.flags = ["-D__CUDA_BF16_TYPES_EXIST__=1", "-D__CUDA_FP8_TYPES_EXIST__=1",
                      *(f"-isystem{folder}" for folder in folders)]
        self.text = preprocess(include, *self.flags)
        macros = subprocess.run(["cc", "-E", "-dM", "-x", "c", *self.flags, "-"], input=include, check=True,
                                capture_output=True, text=True).stdout
        self.macros = dict(re.findall(r"^#define (\w+) (.*)$", macros, re.MULTILINE))
        self.words = set(re.findall(r"\w+", self.text)) | set(self.macros)

    def streamed(self):
        """Functions of NCCL that take a stream: collectives and whatever else works on the device."""
        found = re.findall(r"\b(nccl\w+)\s*\(([^;{}]*?)\)\s*(?:__attribute__[^;]*)?;", self.text)
        return {name: params for name, params in found if "cudaStream_t" in params}

    def wrong(self, rows):
        """Rows that these headers know and contradict, each with the compiler's words."""
        head = [self.include, "#include <stddef.h>", "#include <stdint.h>", "#include <limits.h>"]
        text = "\n".join(head + [row.line for row in rows]) + "\n"
        offset = text[:text.index(rows[0].line)].count("\n") + 1
        with tempfile.TemporaryDirectory(prefix="symmshim-versions-") as folder:
            path = pathlib.Path(folder) / "check.c"
            path.write_text(text)
            run = subprocess.run(["cc", "-fsyntax-only", "-fmax-errors=0", *self.flags, path], capture_output=True,
                                 text=True, check=False)
        if run.returncode == 0:
            return []
        found = {}
        for line, words in re.findall(r"check\.c:(\d+):\d+: error: (.*)", run.stderr):
            found.setdefault(int(line) - offset, words)
        if not found or min(found) < 0:
            raise RuntimeError(f"the headers do not compile:\n{run.stderr[-3000:]}")
        return [(rows[at], words) for at, words in sorted(found.items())]

    def settings(self):
        """The bytes that the header's own initializer gives to the settings of a call; None before there are any."""
        if "ncclCollConfig_t" not in self.words:
            return None
        program = self.include + """
#include <stdio.h>
int main(void)
{
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  return fwrite(&config, sizeof(config), 1, stdout) == 1 ? 0 : 1;
}
"""
        with tempfile.TemporaryDirectory(prefix="symmshim-versions-") as folder:
            subprocess.run(["cc", "-x", "c", *self.flags, "-o", f"{folder}/settings", "-"], input=program, check=True,
                           text=True)
            return subprocess.run([f"{folder}/settings"], check=True, capture_output=True).stdout

    def config(self):
        """What the header's own initializer gives: size and magic of a configuration, and its settings."""
        program = self.include + """
#include <stdio.h>
#include <string.h>
int main(void)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int words[sizeof(config) / 4];
  memcpy(words, &config, sizeof(config));
  printf("%zu %u", config.size, config.magic);
  for (size_t i = 4; i < sizeof(config) / 4; i++)
    printf(" %d", words[i]);
  return 0;
}
"""
        with tempfile.TemporaryDirectory(prefix="symmshim-versions-") as folder:
            subprocess.run(["cc", "-x", "c", *self.flags, "-o", f"{folder}/config", "-"], input=program, check=True,
                           text=True)
            text = subprocess.run([f"{folder}/config"], check=True, capture_output=True, text=True).stdout
        size, magic, *fields = (int(word) for word in text.split())
        return size, magic, fields


def judge(rows, headers):
    """(rows that the headers know, rows that they do not, problems, notes)."""
    known = [row for row in rows if row.is_known(headers.words)]
    problems, notes = [], []
    used = used_in_shim()
    for row, words in headers.wrong(known):
        if row.kind == "constant" and row.name not in used:
            notes.append(f"{row.name} has another value, which the shim does not use")
        elif row.kind == "field" and "has no member" in words:
            known.remove(row)
        else:
            problems.append(f"{row.name}: {words}")
    return known, [row for row in rows if row not in known], problems, notes

#!/usr/bin/env python3
"""describe_test.py CLANG COMPILER INCLUDE_FOLDER: describe.py sees each of these changes of mkrt.h, or refuses it."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

DESCRIBE = pathlib.Path(__file__).with_name("describe.py")

# What is replaced, by what, and a part of the description or of the refusal that then comes.
CHANGES = [
    # Described.
    ("int32_t driver_code;", "uint32_t driver_code;", '"driver_code", "type": "uint32_t"'),
    ("char message[456];", "char message[464];", '"mkrt_error", "header": "mkrt/mkrt.h", "since": "0.1", "size": 520'),
    ("uint64_t* out_value,\n", "uint64_t* out_done,\n", '"out_done"'),
    ("MKRT_DTYPE_U8 = 6", "MKRT_DTYPE_U8 = 77 /* Since 0.2. */", '"since": "0.2", "value": 77'),
    # Refused.
    ("uint32_t reserved;     /* zero */", "uint32_t reserved : 32;", "FieldDecl reserved is not understood"),
    ("} mkrt_rank_desc;", "} __attribute__((packed)) mkrt_rank_desc;", "PackedAttr None is not understood"),
    ("mkrt_log_function log;", "void (*log)(void*);", "the type 'void (*)(void *)' is not understood"),
    ("enum { MKRT_LOG_ERROR", "enum mkrt_log { MKRT_LOG_ERROR", "an enum with a name is not understood"),
    ("MKRT_API uint32_t mkrt_version", "uint32_t mkrt_version", "mkrt_version is neither MKRT_API nor"),
    ("MKRT_API uint32_t mkrt_version(void);", "extern int mkrt_x;", "a VarDecl is not understood"),
    ("#define MKRT_MAX_RANKS 64 ", "#define MKRT_MAX_RANKS(x) 64 ", "the macro MKRT_MAX_RANKS(x) is not understood"),
    ("is loaded. Any thread. Since 0.1.", "is loaded. Any thread.", "no comment says since which version"),
    ("mkrt_mesh_destroy(", "mkrt_mesh_close(", "no function mkrt_mesh_destroy destroys it"),
]


def main(clang, compiler, include):
    def describe():
        command = [sys.executable, str(DESCRIBE), "headers", clang, compiler, str(folder)]
        result = subprocess.run(command, capture_output=True, text=True)
        return result.stdout + result.stderr

    failures = []
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work, "include")
        shutil.copytree(include, folder)
        header = folder / "mkrt/mkrt.h"
        original = header.read_text()
        unchanged = describe()
        for old, new, expected in CHANGES:
            header.write_text(original.replace(old, new, 1))
            if old not in original or expected in unchanged or expected not in describe():
                failures.append(f"{old!r} to {new!r}: no {expected!r}")
        header.write_text(original)
        (folder / "mkrt/more.h").write_text("")
        if "mkrt/more.h" not in describe():
            failures.append("a new header goes unnoticed")
    if failures:
        sys.exit("\n".join(failures))


main(*sys.argv[1:])

#!/usr/bin/env python3
"""Describes the C interface in JSON: what bindings/abi.json holds, and what the tests here compare it with.

    describe.py headers CLANG COMPILER INCLUDE_FOLDER   the description of the headers, to standard output
    describe.py check DESCRIPTION CLANG COMPILER INCLUDE_FOLDER    whether DESCRIPTION is what `headers` prints
    describe.py program DESCRIPTION                     a program that prints what a compiler makes of it
    describe.py compare DESCRIPTION PROGRAM             whether that program finds what DESCRIPTION says

Names and types come from clang's syntax tree, sizes, offsets and values from a program that COMPILER builds: nothing is
worked out here. What this tool does not understand it refuses, so that no declaration goes missing.
"""
import difflib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# In the order in which the description has them; one that is included by another of them counts as itself.
HEADERS = ["mkrt/mkrt.h", "mkrt/host_isa.h", "mkrt/device/table.h", "mkrt/device/launch.h"]
# Public headers that declare nothing: asserts about the others' structs.
NO_DECLARATIONS = {"mkrt/device/layout.h"}
# Macros that are no constants: how functions are exported, an initializer, and a check at compile time.
NO_CONSTANTS = {"MKRT_API", "MKRT_ERROR_INIT", "MKRT_STATIC_ASSERT(condition)"}
NUMBERS = ("value", "offset", "size", "alignment")  # what comes from the compiler
BASIC_TYPES = {"void", "char", "size_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t"}
CALLBACK = re.compile(r"(?P<returns>[^()]+)\(\*\)\((?P<parameters>[^()]*)\)")
TYPE = re.compile(
    r"(?P<const>const )?(?:struct )?(?P<base>\w+)(?P<pointers>(?: ?\*(?: ?const\b)?)*)(?P<array>\[\d+\])?")
SINCE = re.compile(r"Since\s+(?:\*\s+)?(\d+\.\d+)")


def refuse(where, what):
    sys.exit(f"describe.py: {where}: {what}")


# ---- What the headers declare ----------------------------------------------------------------------------------------


class Header:
    """The text of a header, for the versions that its comments name."""

    def __init__(self, folder, name):
        self.name = name
        self.lines = (folder / name).read_text().split("\n")

    def since(self, line, default=None):
        """The version named beside line `line`, or in the comment that ends above it."""
        text = self.lines[line - 1]
        above = line - 2
        if above >= 0 and self.lines[above].endswith("*/"):
            while not self.lines[above].lstrip().startswith("/*"):
                # A comment beside another declaration is not about this one.
                if "/*" in self.lines[above] or above == 0:
                    above = line - 1
                    break
                above -= 1
            text = "\n".join(self.lines[above:line])
        found = SINCE.search(text)
        if not found and default is None:
            refuse(f"{self.name}:{line}", "no comment says since which version this is there")
        return found[1] if found else default


class Interface:
    """Collects declarations; the numbers are filled in later."""

    def __init__(self):
        self.functions, self.structs, self.handles = [], [], []
        self.aliases, self.callbacks, self.constants = [], [], []

    def description(self):
        statuses = [c for c in self.constants if c["name"] == "MKRT_OK" or c["name"].startswith("MKRT_ERROR_")]
        return {
            "handles": self.handles, "aliases": self.aliases, "callbacks": self.callbacks, "functions": self.functions,
            "structs": self.structs, "statuses": statuses,
            "constants": [c for c in self.constants if c not in statuses],
        }


def read_declarations(clang, folder):
    there = {str(path.relative_to(folder)) for path in folder.glob("**/*.h")}
    if there != {*HEADERS, *NO_DECLARATIONS}:
        refuse(folder, f"which of these headers are to be described? {sorted(there ^ {*HEADERS, *NO_DECLARATIONS})}")
    headers = {name: Header(folder, name) for name in HEADERS}
    source = "".join(f'#include "{name}"\n' for name in HEADERS)
    command = [clang, "-x", "c", "-std=c11", "-Wall", "-Werror", f"-I{folder}", "-"]
    tree = json.loads(run(command + ["-fsyntax-only", "-Xclang", "-ast-dump=json"], source))
    place_nodes(tree, {"file": "", "line": 0})
    interface = Interface()
    defined = {node.get("name") for node in tree["inner"] if node["kind"] == "RecordDecl" and is_definition(node)}
    for node in tree["inner"]:
        header = header_of(node, folder, headers)
        if header is not None:
            read_declaration(interface, node, header, defined)
    read_macros(interface, run(command + ["-E", "-dD"], source), folder, headers)
    return interface.description()


def place_nodes(node, last):
    """Gives every location its file and line, which clang leaves out where they are those of the location before."""
    if isinstance(node, list):
        for item in node:
            place_nodes(item, last)
    elif isinstance(node, dict):
        if "offset" in node:
            last.update({key: node[key] for key in ("file", "line") if key in node})
            node.update(last)
        for key, item in node.items():
            if key != "includedFrom":
                place_nodes(item, last)


def begin_of(node):
    begin = node["range"]["begin"]
    return begin.get("expansionLoc", begin)


def header_of(node, folder, headers):
    """The header that a top-level declaration stands in; None for those of the system."""
    file = begin_of(node).get("file", "")
    if not file.startswith(f"{folder}/"):
        return None
    name = file[len(f"{folder}/"):]
    if name not in headers:
        refuse(name, "this header is included by a public one but is not described")
    return headers[name]


def is_definition(node):
    return node.get("completeDefinition", False)


def read_declaration(interface, node, header, defined):
    where = f"{header.name}:{begin_of(node)['line']}"
    entry = {"name": node.get("name"), "header": header.name}
    if node["kind"] == "RecordDecl":
        if is_definition(node):
            read_struct(interface, node, entry, header, where)
    elif node["kind"] == "EnumDecl":
        read_enum(interface, node, header, where)
    elif node["kind"] == "TypedefDecl":
        read_typedef(interface, node, entry, header, defined, where)
    elif node["kind"] == "FunctionDecl":
        read_function(interface, node, entry, header, where)
    else:
        refuse(where, f"a {node['kind']} is not understood")


def read_struct(interface, node, entry, header, where):
    if node["tagUsed"] != "struct" or not node.get("name"):
        refuse(where, "only structs with names are understood")
    entry["since"] = header.since(begin_of(node)["line"])
    entry["fields"] = []
    for field in node["inner"]:
        # Bit fields have no place, attributes can change places, and structs without names have no offset.
        if field["kind"] != "FieldDecl" or field.get("isBitfield") or field.get("inner"):
            refuse(where, f"in {node['name']}, {field['kind']} {field.get('name')} is not understood")
        field_entry = {"name": field["name"], "type": plain_type(field["type"], where)}
        own = header.since(begin_of(field)["line"], default=entry["since"])
        if own != entry["since"]:
            field_entry["since"] = own
        entry["fields"].append(field_entry)
    interface.structs.append(entry)


def read_enum(interface, node, header, where):
    if node.get("name"):
        refuse(where, "an enum with a name is not understood: its size is the compiler's choice")
    since = header.since(begin_of(node)["line"])
    for constant in node["inner"]:
        if constant["kind"] != "EnumConstantDecl":
            refuse(where, f"{constant['kind']} in an enum is not understood")
        interface.constants.append({"name": constant["name"], "header": header.name,
                                    "since": header.since(begin_of(constant)["line"], default=since)})


def read_typedef(interface, node, entry, header, defined, where):
    spelled = node["type"]["qualType"]
    entry["since"] = header.since(begin_of(node)["line"])
    callback = CALLBACK.fullmatch(spelled)
    if spelled == f"struct {node['name']}":
        if node["name"] not in defined:
            interface.handles.append(entry)
    elif callback:
        entry["returns"] = plain_type(callback["returns"], where)
        entry["parameters"] = [plain_type(parameter, where) for parameter in callback["parameters"].split(", ")]
        interface.callbacks.append(entry)
    else:
        entry["type"] = plain_type(node["type"], where)
        interface.aliases.append(entry)


def read_function(interface, node, entry, header, where):
    parameters = [part for part in node.get("inner", []) if part["kind"] == "ParmVarDecl"]
    others = {part["kind"] for part in node.get("inner", []) if part["kind"] != "ParmVarDecl"}
    is_inline = node.get("storageClass") == "static" and node.get("inline", False)
    if node.get("variadic") or others != ({"CompoundStmt"} if is_inline else {"VisibilityAttr"}):
        refuse(where, f"{node['name']} is neither MKRT_API nor static inline, or has what is not understood")
    entry["since"] = header.since(begin_of(node)["line"])
    if is_inline:
        entry["inline"] = True
    entry["returns"] = plain_type(node["type"]["qualType"].partition("(")[0], where)
    for parameter in parameters:
        if not parameter.get("name") or parameter.get("inner"):
            refuse(where, f"a parameter of {node['name']} is not understood")
    entry["parameters"] = [{"name": parameter["name"], "type": plain_type(parameter["type"], where)}
                           for parameter in parameters]
    interface.functions.append(entry)


def plain_type(spelled, where):
    """A type as the description spells it: stars beside the type, no `struct`. `check_names` looks its base up."""
    if isinstance(spelled, dict):
        spelled = spelled["qualType"]
    found = TYPE.fullmatch(spelled.strip())
    if not found:
        refuse(where, f"the type '{spelled}' is not understood")
    pointers = re.sub(r"\s*\*\s*(const)?", lambda star: "* const" if star[1] else "*", found["pointers"])
    return (found["const"] or "") + found["base"] + pointers + (found["array"] or "")


def read_macros(interface, text, folder, headers):
    header, line = None, 0
    for row in text.split("\n"):
        marker = re.fullmatch(r'# (\d+) "([^"]*)".*', row)
        if marker:
            line = int(marker[1])
            header = headers.get(marker[2][len(f"{folder}/"):]) if marker[2].startswith(f"{folder}/") else None
            continue
        macro = re.fullmatch(r"#define (\w+(?:\([^)]*\))?) ?(.*)", row)
        if macro and header and macro[1] not in NO_CONSTANTS and not re.fullmatch(r"MKRT_\w+_H_", macro[1]):
            if "(" in macro[1] or not macro[2]:
                refuse(f"{header.name}:{line}", f"the macro {macro[1]} is not understood")
            interface.constants.append({"name": macro[1], "header": header.name, "since": header.since(line)})
        line += 1


def check_names(description):
    """Every type is one of C or one that is described; every handle can be destroyed."""
    types = set(BASIC_TYPES)
    for kind in ("handles", "aliases", "callbacks", "structs"):
        types |= {entry["name"] for entry in description[kind]}
    for user, spelled in used_types(description):
        if TYPE.fullmatch(spelled)["base"] not in types:
            refuse(user, f"the type {spelled} is not known")
    functions = {function["name"]: function for function in description["functions"]}
    for handle in description["handles"]:
        destroy = f"{handle['name']}_destroy"
        if destroy not in functions or [p["type"] for p in functions[destroy]["parameters"]] != [f"{handle['name']}*"]:
            refuse(handle["name"], f"no function {destroy} destroys it")
        handle["destroy"] = destroy


def used_types(description):
    for function in description["functions"]:
        spelled = [function["returns"]] + [parameter["type"] for parameter in function["parameters"]]
        yield from ((function["name"], one) for one in spelled)
    for callback in description["callbacks"]:
        yield from ((callback["name"], spelled) for spelled in [callback["returns"], *callback["parameters"]])
    for struct in description["structs"]:
        yield from ((struct["name"], field["type"]) for field in struct["fields"])
    yield from ((alias["name"], alias["type"]) for alias in description["aliases"])


# ---- What a compiler makes of them -----------------------------------------------------------------------------------


# The | is for integers only: it refuses constants that are something else.
PRINTING = r"""
#include <stdio.h>
#ifdef __cplusplus
#define ALIGNMENT_OF alignof
#else
#define ALIGNMENT_OF _Alignof
#endif
#define STRUCT(type) \
  printf("{\"struct\": \"%s\", \"size\": %zu, \"alignment\": %zu}\n", #type, sizeof(type), ALIGNMENT_OF(type))
#define FIELD(type, member)                                                               \
  printf("{\"struct\": \"%s\", \"field\": \"%s\", \"offset\": %zu, \"size\": %zu}\n", #type, #member, \
         offsetof(type, member), sizeof(((type*)0)->member))
#define CONSTANT(name) printf("{\"constant\": \"%s\", \"value\": %lld}\n", #name, (long long)((name) | 0))
"""


def program(description):
    """C11 and C++17: prints a JSON object a line with the numbers of each struct, field and constant."""
    lines = [f'#include "{name}"' for name in HEADERS] + [PRINTING, "int main(void) {"]
    for struct in description["structs"]:
        lines.append(f"  STRUCT({struct['name']});")
        lines += [f"  FIELD({struct['name']}, {field['name']});" for field in struct["fields"]]
    lines += [f"  CONSTANT({constant['name']});" for constant in description["statuses"] + description["constants"]]
    return "\n".join(lines + ["  return 0;", "}", ""])


def fill_in(description, printed):
    """Puts the numbers that such a program printed where they belong, and takes out those that were there."""
    structs = {struct["name"]: struct for struct in description["structs"]}
    constants = {constant["name"]: constant for constant in description["statuses"] + description["constants"]}
    fields = [field for struct in description["structs"] for field in struct["fields"]]
    for target in [*structs.values(), *constants.values(), *fields]:
        for key in NUMBERS:
            target.pop(key, None)
    for row in map(json.loads, printed.splitlines()):
        if "constant" in row:
            target = constants[row["constant"]]
        elif "field" in row:
            target = next(field for field in structs[row["struct"]]["fields"] if field["name"] == row["field"])
        else:
            target = structs[row["struct"]]
        target.update({key: row[key] for key in NUMBERS if key in row})


def describe(clang, compiler, folder):
    folder = pathlib.Path(folder).resolve()
    description = read_declarations(clang, folder)
    check_names(description)
    with tempfile.TemporaryDirectory() as work:
        source, binary = pathlib.Path(work, "program.c"), pathlib.Path(work, "program")
        source.write_text(program(description))
        run([compiler, "-std=c11", f"-I{folder}", str(source), "-o", str(binary)])
        fill_in(description, run([str(binary)]))
    return layout(description)


def run(command, text=None):
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    if result.returncode != 0:
        refuse(command[0], f"failed with {result.returncode}\n{result.stderr}")
    return result.stdout


# ---- The file --------------------------------------------------------------------------------------------------------

ORDER = ["name", "header", "since", "destroy", "inline", "type", *NUMBERS, "returns", "parameters", "fields"]


def layout(description):
    """One line for each entry, parameter and field, so that a change shows as the lines that changed."""
    kinds = []
    for kind, entries in description.items():
        kinds.append(f'  "{kind}": [\n' + ",\n".join(f"    {layout_entry(entry)}" for entry in entries) + "\n  ]")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def layout_entry(entry):
    parts = []
    for key in sorted(entry, key=ORDER.index):
        value = entry[key]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(f"      {layout_entry(item)}" for item in value) + "\n    ]"
        else:
            text = json.dumps(value)
        parts.append(f'"{key}": {text}')
    return "{" + ", ".join(parts) + "}"


def compare(path, now):
    """Fails with the lines that differ."""
    golden = pathlib.Path(path).read_text()
    if golden == now:
        return
    sys.stderr.writelines(difflib.unified_diff(golden.splitlines(True), now.splitlines(True), path, "now"))
    sys.exit("The C interface is not the one that is described. A change of what is there breaks every binding; if it "
             "is meant, build the target mkrt_abi_description.")


def main(command, *arguments):
    if command == "headers":
        sys.stdout.write(describe(*arguments))
    elif command == "check":
        compare(arguments[0], describe(*arguments[1:]))
    elif command == "program":
        sys.stdout.write(program(json.loads(pathlib.Path(*arguments).read_text())))
    elif command == "compare":
        description = json.loads(pathlib.Path(arguments[0]).read_text())
        fill_in(description, run([arguments[1]]))
        compare(arguments[0], layout(description))
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])

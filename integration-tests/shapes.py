#!/usr/bin/env python3
"""Counts the shapes of the product's code: how large its types are, what functions take, and what stands in it twice.

    integration-tests/shapes.py [REVISION]      the working tree, or a revision of the repository
    integration-tests/shapes.py --list KIND     what was counted: tuples, types, names, patterns, long

Product code is Rust outside tests, benches, examples, the test kit and the model. Comments and blank lines count nowhere.
"""

import argparse
import collections
import re
import subprocess
import sys

NOT_PRODUCT = re.compile(r"(^|/)(tests|benches|examples|testdata|fixtures)(/|\.rs$)|^(core/testkit|core/model|integration-tests)/|/build\.rs$")
LONG_FUNCTION = 70
METHODS_MAX = 40


def files(revision):
    """Yields the path and the text of each Rust file of the product."""
    if revision is None:
        listed = subprocess.check_output(["git", "ls-files", "-z", "*.rs"], text=True).split("\0")
    else:
        listed = subprocess.check_output(["git", "ls-tree", "-rz", "--name-only", revision], text=True).split("\0")
    paths = [path for path in listed if path.endswith(".rs") and not NOT_PRODUCT.search(path)]
    if revision is None:
        for path in paths:
            with open(path, encoding="utf-8") as file:
                yield path, file.read()
        return
    asked = "".join(f"{revision}:{path}\n" for path in paths)
    answer = subprocess.run(["git", "cat-file", "--batch"], input=asked.encode(), capture_output=True, check=True).stdout
    at = 0
    for path in paths:
        end = answer.index(b"\n", at)
        size = int(answer[at:end].split()[2])
        yield path, answer[end + 1 : end + 1 + size].decode()
        at = end + 1 + size + 1


TOKEN = re.compile(
    r"//[^\n]*"  # A comment.
    r"|/\*.*?\*/"
    r"|b?r(#*)\".*?\"\1"  # A raw string.
    r"|b?\"(?:\\.|[^\"\\])*\""
    r"|b?'(?:\\(?:x[0-9a-f]{2}|u\{[^}]*\}|.)|[^'\\\n])'",
    re.S,
)


def blank(text):
    """Returns the text with strings and characters empty and without comments; lines stay where they are."""

    def replaced(match):
        token = match.group()
        lines = "\n" * token.count("\n")
        return lines if token.startswith("/") else '""' + lines

    return TOKEN.sub(replaced, text)


def closing(text, at):
    """Returns the index of the bracket that closes the one at an index."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    open_one, close_one, depth = text[at], pairs[text[at]], 0
    for idx in range(at, len(text)):
        if text[idx] == open_one:
            depth += 1
        elif text[idx] == close_one:
            depth -= 1
            if depth == 0:
                return idx
    return len(text) - 1


def without_tests(text):
    """Returns code without the modules and items that are built for tests alone."""
    out, at = [], 0
    for match in re.finditer(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*", text):
        if match.start() < at:
            continue
        out.append(text[at : match.start()])
        brace, semicolon = text.find("{", match.end()), text.find(";", match.end())
        at = semicolon + 1 if brace < 0 or 0 <= semicolon < brace else closing(text, brace) + 1
    return "".join(out) + text[at:]


FUNCTION = re.compile(r"\bfn\s+(\w+)")


def functions(text):
    """Yields the name, the parameters and the body of each function."""
    for match in FUNCTION.finditer(text):
        at = match.end()
        if at < len(text) and text[at] == "<":
            depth = 0
            while at < len(text):
                if text[at] == "<":
                    depth += 1
                elif text[at] == ">" and text[at - 1] != "-":
                    depth -= 1
                    if depth == 0:
                        break
                at += 1
            at += 1
        if at >= len(text) or text[at] != "(":
            continue
        end = closing(text, at)
        brace, semicolon = text.find("{", end), text.find(";", end)
        has_body = brace >= 0 and not 0 <= semicolon < brace
        yield match.group(1), text[at + 1 : end], text[brace : closing(text, brace) + 1] if has_body else ""


def parts(text, separator=","):
    """Returns what stands between separators outside of brackets."""
    found, depth, begin = [], 0, 0
    for idx, char in enumerate(text):
        if char in "([{<":
            depth += 1
        elif char in ")]}" or (char == ">" and text[idx - 1] not in "-="):
            depth -= 1
        elif char == separator and depth == 0:
            found.append(text[begin:idx])
            begin = idx + 1
    return [part.strip() for part in found + [text[begin:]] if part.strip()]


def is_tuple(parameter):
    """Whether a parameter is a tuple, by its pattern or its type."""
    pattern, _, kind = parameter.partition(":")
    kind = re.sub(r"^(&\s*('\w+\s+)?(mut\s+)?)+", "", kind.strip())
    takes = [one for one in (pattern.strip(), kind) if one.startswith("(")]
    return any(len(parts(one[1 : closing(one, 0)])) > 1 for one in takes)


IMPL = re.compile(r"^[ \t]*(?:unsafe )?impl\b", re.M)


def impls(text):
    """Yields the trait (or None), the type and the body of each implementation."""
    for match in IMPL.finditer(text):
        brace = text.find("{", match.end())
        if brace < 0:
            continue
        head = text[match.end() : brace].strip()
        if head.startswith("<"):
            depth = 0
            for idx, char in enumerate(head):
                depth += (char == "<") - (char == ">" and head[idx - 1] != "-")
                if depth == 0:
                    head = head[idx + 1 :].strip()
                    break
        head = re.split(r"\bwhere\b", head)[0].strip()
        trait, _, kind = head.rpartition(" for ")
        name = re.match(r"&?(?:'\w+ )?(?:\w+::)*(\w+)", kind.strip())
        if name:
            trait = re.match(r"(?:\w+::)*(\w+)", trait.strip())
            yield trait and trait.group(1), name.group(1), text[brace : closing(text, brace) + 1]


def methods(body):
    """Returns the names of the functions that an implementation has itself, not those within them."""
    names, at = [], 1
    for match in FUNCTION.finditer(body):
        if match.start() < at:
            continue
        names.append(match.group(1))
        end = closing(body, body.index("(", match.end()))
        brace, semicolon = body.find("{", end), body.find(";", end)
        at = semicolon if brace < 0 or 0 <= semicolon < brace else closing(body, brace)
    return names


PATTERN = re.compile(r"^\s*\|?\s*(?:Change|Subject|Record|RecordKey)::")


def crate_of(path):
    """The folder of a crate."""
    return path.split("/src/")[0]


def count(revision):
    """Counts everything; returns lists by kind."""
    found = collections.defaultdict(list)
    by_type, names, traits = collections.Counter(), collections.defaultdict(set), set()
    implementations = []
    n_lines = n_functions = 0
    for path, text in files(revision):
        code = without_tests(blank(text))
        n_lines += sum(1 for line in code.splitlines() if line.strip())
        for name, parameters, body in functions(code):
            n_functions += 1
            tuples = [one for one in parts(parameters) if is_tuple(one)]
            if tuples:
                found["tuples"].append(f"{path}: {name}")
                found["apart"] += [name] if any(one.startswith("(") for one in tuples) else []
            if body.count("\n") + 1 > LONG_FUNCTION:
                found["long"].append(f"{path}: {name}")
        traits.update(re.findall(r"\btrait (\w+)", code))
        implementations += [(crate_of(path), *one) for one in impls(code)]
        for name in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|union|trait|type) (\w+)", code, re.M):
            names[name].add(path)
        found["patterns"] += [f"{path}: {line.strip()}" for line in code.splitlines() if PATTERN.match(line)]
    for crate, trait, kind, body in implementations:
        if trait is None or (trait in traits and trait.endswith("Ext")):
            by_type[crate, kind] += len(methods(body))
    found["types"] = [f"{n} {kind} ({crate})" for (crate, kind), n in by_type.most_common() if n > METHODS_MAX]
    found["names"] = [f"{name}: {len(where)}" for name, where in sorted(names.items()) if len(where) > 1]
    twice = 100 * len(found["names"]) / max(len(names), 1)
    print(f"{n_lines:7} lines of product code")
    print(f"{len(found['tuples']):7} functions that take a tuple, {len(found['apart'])} of them apart where they take it")
    print(f"{len(found['types']):7} types of more than {METHODS_MAX} methods")
    print(f"{twice:6.1f}% type names that stand more than once ({len(found['names'])} of {len(names)})")
    print(f"{len(found['patterns']):7} lines that begin with a pattern of a change or a record")
    print(f"{100 * len(found['long']) / max(n_functions, 1):6.2f}% functions of more than {LONG_FUNCTION} lines")
    return found


def main():
    """Prints the counts, or what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="the working tree if there is none")
    parser.add_argument("--list", choices=["tuples", "types", "names", "patterns", "long"], help="print what was counted as well")
    given = parser.parse_args()
    found = count(given.revision)
    for line in found[given.list] if given.list else []:
        print(line)


if __name__ == "__main__":
    sys.exit(main())

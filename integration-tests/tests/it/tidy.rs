//! The layout of the tree: which crate may use which, that every module is named in its crate's documentation, and that
//! `ARCHITECTURE.md` shows the map of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// Every other crate may use it.
const BASE: &str = "godel-base";
const DOMAIN: &str = "godel-domain";
const QUEUEING: &str = "godel-queueing";
const MEMBERSHIP: &str = "godel-membership";
const IDENTITY: &str = "godel-identity";
const RULES: &str = "godel-rules";
const CLUSTER: &str = "godel-cluster";
const FRAMEWORK: &str = "godel-framework";
const PLACEMENT: &str = "godel-placement";
const PROTO: &str = "godel-proto";
const PKI: &str = "godel-pki";
const KIT: &str = "godel-kit";
const WIRE: &str = "godel-wire";
const HADOOP: &str = "godel-hadoop";
const CRASH: &str = "godel-crash";
const ETCD: &str = "godel-etcd";

/// What each crate of `core/` may use of ours: a crate stands below all that it uses.
const CORE: [(&str, &[&str]); 20] = [
    (BASE, &[]),
    (DOMAIN, &[]),
    ("godel-testkit", &[DOMAIN]),
    (QUEUEING, &[DOMAIN]),
    (MEMBERSHIP, &[DOMAIN]),
    (IDENTITY, &[DOMAIN]),
    (RULES, &[DOMAIN, QUEUEING]),
    (CLUSTER, &[DOMAIN, RULES]),
    (FRAMEWORK, &[DOMAIN, RULES, CLUSTER]),
    (PLACEMENT, &[DOMAIN, QUEUEING, RULES, CLUSTER, FRAMEWORK]),
    ("godel-core-dispatcher", &[DOMAIN, QUEUEING, RULES]),
    ("godel-core-scheduler", &[DOMAIN, QUEUEING, RULES, CLUSTER, FRAMEWORK, PLACEMENT]),
    ("godel-core-binder", &[DOMAIN, QUEUEING, RULES, CLUSTER, FRAMEWORK, PLACEMENT]),
    ("godel-audit", &[DOMAIN]),
    ("godel-core-agent", &[DOMAIN, MEMBERSHIP]),
    ("godel-core-yarn", &[DOMAIN, MEMBERSHIP, IDENTITY]),
    ("godel-core-yarn-leader", &[DOMAIN, MEMBERSHIP, IDENTITY, "godel-core-yarn"]),
    ("godel-core-rescheduler", &[DOMAIN]),
    (
        "godel-core-rescheduler-leader",
        &[DOMAIN, QUEUEING, RULES, CLUSTER, FRAMEWORK, "godel-core-rescheduler"],
    ),
    (
        "godel-model",
        &[
            DOMAIN,
            IDENTITY,
            RULES,
            CLUSTER,
            "godel-core-dispatcher",
            "godel-core-scheduler",
            "godel-core-binder",
            "godel-core-agent",
            "godel-audit",
            "godel-testkit",
        ],
    ),
];

/// The same for the other crates; `godel` and `godel-bench` may use all but each other.
const OTHERS: [(&str, &[&str]); 16] = [
    (PROTO, &[]),
    (WIRE, &[DOMAIN, IDENTITY, PROTO]),
    (CRASH, &[]),
    (ETCD, &[]),
    ("godel-store", &[DOMAIN, PROTO, WIRE, CRASH, ETCD]),
    (PKI, &[DOMAIN, IDENTITY]),
    (KIT, &[DOMAIN, IDENTITY, PKI, MEMBERSHIP, PROTO, WIRE, CRASH]),
    (HADOOP, &[DOMAIN, KIT]),
    ("godel-state", &[DOMAIN, IDENTITY, MEMBERSHIP, PROTO, PKI, WIRE, CRASH, ETCD, "godel-store", KIT]),
    ("godel-dispatcher", &[DOMAIN, QUEUEING, RULES, "godel-core-dispatcher", PROTO, WIRE, CRASH, KIT]),
    (
        "godel-scheduler",
        &[DOMAIN, RULES, FRAMEWORK, PLACEMENT, "godel-core-scheduler", PROTO, WIRE, CRASH, KIT],
    ),
    ("godel-binder", &[DOMAIN, "godel-core-binder", PROTO, WIRE, CRASH, KIT]),
    ("godel-agent", &[DOMAIN, MEMBERSHIP, "godel-core-agent", PROTO, WIRE, HADOOP, KIT]),
    ("godel-yarn", &[DOMAIN, "godel-core-yarn", "godel-core-yarn-leader", PROTO, WIRE, CRASH, HADOOP, KIT]),
    (
        "godel-rescheduler",
        &[DOMAIN, "godel-core-rescheduler", "godel-core-rescheduler-leader", PROTO, WIRE, CRASH, KIT],
    ),
    ("godel-client", &[DOMAIN, IDENTITY, QUEUEING, RULES, "godel-audit", PROTO, PKI, WIRE, KIT]),
];

/// Not in `core`: runtime, wire, disk, clocks.
const NOT_IN_CORE: [&str; 7] = ["tokio", "tonic", "prost", "bytes", "sled", "rand", "uuid"];

/// Folders of the crates whose modules are listed in their `lib.rs` and in `ARCHITECTURE.md`, in the order of the map.
const MAPPED: [&str; 37] = [
    "core/base",
    "core/domain",
    "core/queueing",
    "core/membership",
    "core/identity",
    "core/rules",
    "core/cluster",
    "core/framework",
    "core/placement",
    "core/dispatcher",
    "core/scheduler",
    "core/binder",
    "core/audit",
    "core/agent",
    "core/yarn",
    "core/yarn-leader",
    "core/rescheduler",
    "core/rescheduler-leader",
    "core/testkit",
    "core/model",
    "wire",
    "store",
    "store/etcd",
    "services/crash",
    "services/pki",
    "services/kit",
    "services/hadoop",
    "services/state",
    "services/dispatcher",
    "services/scheduler",
    "services/binder",
    "services/agent",
    "services/yarn",
    "services/rescheduler",
    "client",
    "bench",
    "cli",
];

/// The map in `ARCHITECTURE.md` stands between these.
const MAP: [&str; 2] = ["<!-- map -->\n", "<!-- end of map -->\n"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn dependencies_point_one_way() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let uses: BTreeMap<&str, Vec<&str>> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let normal =
                package["dependencies"].as_array().unwrap().iter().filter(|used| used["kind"].is_null());
            (package["name"].as_str().unwrap(), normal.map(|used| used["name"].as_str().unwrap()).collect())
        })
        .collect();
    for (package, may_use) in CORE.iter().chain(&OTHERS) {
        for used in uses[package].iter().filter(|used| used.starts_with("godel")) {
            assert!(*used == BASE || may_use.contains(used), "{package} must not depend on {used}");
        }
    }
    for (package, _) in CORE {
        for used in &uses[package] {
            assert!(!NOT_IN_CORE.contains(used), "{package} must not depend on {used}");
        }
    }
    assert!(!uses["godel"].contains(&"godel-bench") && !uses["godel-bench"].contains(&"godel"));
    let judged: BTreeSet<&str> = CORE.iter().chain(&OTHERS).map(|(package, _)| *package).collect();
    let left: Vec<&&str> = uses.keys().filter(|package| !judged.contains(**package)).collect();
    assert_eq!(
        left,
        [&"godel", &"godel-bench", &"godel-integration-tests"],
        "say above what these may depend on"
    );
}

/// Modules that a crate declares at its root, and those that its documentation lists, with what it says of them.
fn modules(lib: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let declared = lib.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';').filter(|name| *name != "tests")
    });
    let listed = lib.lines().filter_map(|line| line.strip_prefix("//! - `")?.split_once("`: "));
    let listed = listed.map(|(name, what)| (name.to_owned(), what.to_owned()));
    (declared.map(str::to_owned).collect(), listed.collect())
}

#[test]
fn every_module_is_listed_in_its_crate_and_in_the_map() {
    let mut map = String::new();
    for folder in MAPPED {
        let lib = fs::read_to_string(root().join(folder).join("src/lib.rs")).unwrap();
        let (declared, listed) = modules(&lib);
        let names: BTreeSet<String> = listed.keys().cloned().collect();
        assert_eq!(declared, names, "{folder}/src/lib.rs lists other modules than it has");
        let paragraph: Vec<&str> = lib.lines().map_while(|line| line.strip_prefix("//! ")).collect();
        let paragraph = paragraph.join(" ");
        let what = paragraph.split_once(". ").map_or(paragraph.trim_end_matches('.'), |(first, _)| first);
        map += &format!("\n`{folder}`: {what}.\n\n");
        for (name, what) in listed {
            map += &format!("- `{name}`: {what}\n");
        }
    }
    map.push('\n');
    let path = root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(MAP[0]).unwrap();
    let (shown, after) = rest.split_once(MAP[1]).unwrap();
    if std::env::var_os("GODEL_BLESS").is_some() {
        fs::write(&path, format!("{before}{}{map}{}{after}", MAP[0], MAP[1])).unwrap();
        return;
    }
    assert_eq!(shown, map, "write the map anew with GODEL_BLESS=1");
}

/// Keys of a JSON log line that are not an event's own.
const TAKEN: [&str; 7] = ["message", "level", "target", "timestamp", "span", "spans", "fields"];

/// Rust files below a folder.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Folders with Rust files of ours.
const CODE: [&str; 9] =
    ["proto", "core", "wire", "store", "services", "client", "bench", "cli", "integration-tests"];
/// Lines of a file at most: a longer one wants to be a folder.
const N_LINES_MAX: usize = 600;

#[test]
fn no_file_is_one_that_nobody_wants_to_open() {
    let mut files = Vec::new();
    for folder in CODE {
        rust_files(&root().join(folder), &mut files);
    }
    let n_lines = |path: &PathBuf| fs::read_to_string(path).unwrap().lines().count();
    let long: Vec<(usize, &PathBuf)> = files.iter().map(|path| (n_lines(path), path)).collect();
    assert!(long.len() > 400, "{} files found", long.len());
    let long: Vec<_> = long.into_iter().filter(|(n, _)| *n > N_LINES_MAX).collect();
    assert!(long.is_empty(), "longer than {N_LINES_MAX} lines: {long:?}");
}

/// The files that may have `unsafe` code; each says at its top why it is sound.
const UNSAFE: [&str; 2] = ["services/agent/src/cgroup/enter.rs", "services/agent/src/detect/nvml.rs"];

#[test]
fn unsafe_code_stands_where_it_may() {
    let mut files = Vec::new();
    for folder in CODE {
        rust_files(&root().join(folder), &mut files);
    }
    let allows = ["allow(", "unsafe_code"].concat();
    let has_unsafe = |path: &&PathBuf| fs::read_to_string(path).unwrap().contains(&allows);
    let mut found: Vec<&PathBuf> = files.iter().filter(has_unsafe).collect();
    found.sort_unstable();
    assert!(
        found.len() == UNSAFE.len() && found.iter().zip(UNSAFE).all(|(path, may)| path.ends_with(may)),
        "{found:?}"
    );
}

/// From the bracket that `text` begins with to the one that closes it. Brackets in texts come in pairs here.
fn in_brackets(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find_map(|(at, char)| {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    });
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn a_log_line_has_no_field_that_every_line_has() {
    let mut files = Vec::new();
    for folder in ["services", "store", "client", "cli", "core"] {
        rust_files(&root().join(folder), &mut files);
    }
    let mut n_lines = 0;
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for level in ["error", "warn", "info", "debug", "trace"] {
            for (at, start) in text.match_indices(&format!("tracing::{level}!(")) {
                let line = in_brackets(&text[at + start.len() - 1..]);
                n_lines += 1;
                for key in TAKEN {
                    let named = line.contains(&format!("{key} = ")) || line.contains(&format!("?{key},"));
                    assert!(!named, "{}: a field called {key}: {line}", path.display());
                }
            }
        }
    }
    assert!(n_lines > 50, "{n_lines} found");
}

/// A source of `core/` or `services/` that is no test.
struct Source {
    /// Of the crate, as below `core/` or `services/`.
    folder: String,
    /// The same of the file.
    path: String,
    /// Without the tests at its end.
    text: String,
}

fn sources_below(parent: &str) -> Vec<Source> {
    let parent = root().join(parent);
    let mut files = Vec::new();
    rust_files(&parent, &mut files);
    let source = |path: PathBuf| {
        let below: Vec<&str> =
            path.strip_prefix(&parent).unwrap().iter().map(|part| part.to_str().unwrap()).collect();
        let is_test = below[1] != "src" || below.iter().any(|part| matches!(*part, "tests" | "tests.rs"));
        let (folder, below) = (below[0].to_owned(), below.join("/"));
        let text = fs::read_to_string(&path).unwrap();
        let own = text.split_once("\n#[cfg(test)]\nmod tests {").map_or(text.as_str(), |(own, _)| own);
        (!is_test).then(|| Source { folder, path: below, text: own.to_owned() })
    };
    let sources: Vec<Source> = files.into_iter().filter_map(source).collect();
    assert!(sources.len() > 200, "{} sources found", sources.len());
    sources
}

/// The leading identifier of a text.
fn identifier(text: &str) -> &str {
    let end = text.find(|char: char| !char.is_alphanumeric() && char != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The name of the type or trait that a line defines; associated types and the parameters of macros are none.
fn defined(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) => {
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest)
        }
        None => item,
    };
    let (kind, rest) = item.trim_start().split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "trait") || (kind == "type" && !line.starts_with(' '));
    is_type.then(|| identifier(rest)).filter(|name| !name.is_empty())
}

/// Names that stand for something in every module: each is used by way of its module.
const NAMES_SHARED: [&str; 4] = ["Args", "Config", "Error", "Settings"];

#[test]
fn a_type_name_means_one_thing_in_core() {
    let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Source { path, text, .. } in sources_below("core") {
        for name in text.lines().filter_map(defined).filter(|name| !NAMES_SHARED.contains(name)) {
            paths.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    assert!(paths.len() > 500, "{} types found", paths.len());
    paths.retain(|_, paths| paths.len() > 1);
    assert!(paths.is_empty(), "types with equal names: {paths:#?}");
}

#[test]
fn a_type_name_means_one_thing_in_a_service() {
    let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Source { folder, path, text } in sources_below("services") {
        for name in text.lines().filter_map(defined).filter(|name| !NAMES_SHARED.contains(name)) {
            paths.entry(format!("{folder}: {name}")).or_default().push(path.clone());
        }
    }
    assert!(paths.len() > 500, "{} types found", paths.len());
    paths.retain(|_, paths| paths.len() > 1);
    assert!(paths.is_empty(), "types of one service with equal names: {paths:#?}");
}

/// What follows the generic parameters that a text begins with.
fn after_generics(text: &str) -> &str {
    let mut depth = 0;
    let mut last = ' ';
    for (at, char) in text.char_indices() {
        match char {
            '<' => depth += 1,
            '>' if last != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text[at..].trim_start_matches('>').trim_start();
        }
        last = char;
    }
    text
}

/// Types with methods of their own in a text: of an `impl` without a trait.
fn with_methods(text: &str) -> BTreeSet<&str> {
    let headers = text.split("\nimpl").skip(1).filter_map(|rest| rest.split_once('{'));
    let types = headers.map(|(header, _)| after_generics(header).trim_start());
    types.filter(|of| !of.split_whitespace().any(|word| word == "for")).map(identifier).collect()
}

/// Files over which the methods of one type may be spread: a type with more of them wants to be several.
const N_FILES_MAX: usize = 3;

#[test]
fn methods_of_a_type_in_core_stand_in_few_files() {
    let mut paths: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for Source { folder, path, text } in sources_below("core") {
        for name in with_methods(&text) {
            paths.entry((folder.clone(), name.to_owned())).or_default().push(path.clone());
        }
    }
    assert!(paths.len() > 200, "{} types found", paths.len());
    paths.retain(|_, paths| paths.len() > N_FILES_MAX);
    assert!(paths.is_empty(), "types with methods in more than {N_FILES_MAX} files: {paths:#?}");
}

/// Methods of one type at most, over all of its `impl` blocks and the extension traits on it: a type with more of them hands out parts.
const N_METHODS_MAX: usize = 40;
/// Types that have more of them yet. The list only gets shorter.
const MANY_METHODS: [&str; 2] = ["model: Model", "queueing: Queues"];

/// The type that a line begins to implement methods of, by itself or by a trait for extensions.
fn implemented(line: &str) -> Option<&str> {
    let header = after_generics(line.strip_prefix("impl")?);
    let of = match header.split_once(" for ") {
        Some((extension, of)) if identifier(extension).ends_with("Ext") => of,
        Some(_) => return None,
        None => header,
    };
    Some(identifier(of.trim_start_matches('&')))
}

/// How many methods each type has, by the folder of its crate and its name.
fn method_counts(parent: &str) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for Source { folder, text, .. } in sources_below(parent) {
        let mut within = None;
        for line in text.lines() {
            if line.starts_with("impl") {
                within = implemented(line);
            } else if line.starts_with('}') {
                within = None;
            }
            let is_method = line.starts_with("    ") && !line.starts_with("     ") && has_function(line);
            if let Some(name) = within.filter(|_| is_method) {
                *counts.entry(format!("{folder}: {name}")).or_default() += 1;
            }
        }
    }
    assert!(counts.len() > 200, "{} types found", counts.len());
    counts
}

#[test]
fn a_type_in_core_or_a_service_has_few_methods() {
    for (parent, many) in [("core", &MANY_METHODS[..]), ("services", &[])] {
        let mut counts = method_counts(parent);
        counts.retain(|_, count| *count > N_METHODS_MAX);
        let names: Vec<&String> = counts.keys().collect();
        assert_eq!(names, many, "types with more than {N_METHODS_MAX} methods: {counts:#?}");
    }
}

/// What functions in a text take, each as it stands in its brackets.
fn parameters(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("fn ").filter_map(|(at, _)| {
        let name = identifier(&text[at + 3..]);
        let rest = after_generics(&text[at + 3 + name.len()..]);
        rest.starts_with('(').then(|| in_brackets(rest))
    })
}

/// Crates of `core/` that are no product.
const NO_PRODUCT: [&str; 2] = ["model", "testkit"];

#[test]
fn no_function_of_core_or_a_service_takes_a_tuple() {
    let is_tuple = |of: &str| {
        let of = of.trim_start_matches('&');
        of.starts_with('(') && !of.starts_with("()") && !of.starts_with("(dyn ")
    };
    let takes_one =
        |source: &Source| parameters(&source.text).any(|taken| taken.split(": ").skip(1).any(is_tuple));
    let sources = ["core", "services"].into_iter().flat_map(sources_below);
    let product = sources.filter(|source| !NO_PRODUCT.contains(&source.folder.as_str()));
    let paths: Vec<String> = product.filter(takes_one).map(|source| source.path).collect();
    assert!(paths.is_empty(), "functions that take a tuple: {paths:#?}");
}

/// Whether a line begins a function.
fn has_function(line: &str) -> bool {
    let before = line.split_once("fn ").map(|(before, _)| before.trim());
    before.is_some_and(|before| {
        before.split_whitespace().all(|word| FUNCTION_WORDS.iter().any(|one| word.starts_with(one)))
    })
}

/// What may stand before the `fn` of a method.
const FUNCTION_WORDS: [&str; 4] = ["pub", "const", "async", "unsafe"];

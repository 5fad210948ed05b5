//! `make bench-guard`: how many instructions the fixed scenarios take, counted by callgrind and compared with
//! `core/model/benches/guard.txt`. No clock is read, so other work on the machine does not matter.
//!
//! `GODEL_BLESS=1` writes the figures anew. The profiles stay for `callgrind_annotate`; names of scenarios as
//! arguments (`cargo bench -p godel-model --bench guard -- binder-single`) count only those and compare nothing.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own for the terminal")]

mod compare;

use std::{
    collections::BTreeMap,
    error::Error,
    path::Path,
    process::{Command, ExitCode},
};

use compare::{Figure, Figures};
use godel_model::scenarios::{ALL, Scenario, Size, Work};

/// Committed figures, from the crate's folder.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/guard.txt");
/// Where profiles go.
const PROFILES: &str = env!("CARGO_TARGET_TMPDIR");
/// Makes this program do one scenario, under callgrind.
const RUN: &str = "--run";

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let ended = match args.as_slice() {
        [run, name] if run == RUN => run_one(name),
        [] => guard(),
        names => count_some(names),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What callgrind counts: it is told this name.
#[inline(never)]
fn measured(work: &mut dyn Work) {
    work.run();
}

fn run_one(name: &str) -> Result<bool, Box<dyn Error>> {
    let scenario = find(name)?;
    let mut work = scenario.prepare(Size::Small);
    measured(&mut *work);
    let done = work.done();
    println!("{} {:x}", done.n_ops, done.checksum);
    Ok(true)
}

fn guard() -> Result<bool, Box<dyn Error>> {
    let counted: Result<BTreeMap<_, _>, Box<dyn Error>> =
        ALL.iter().map(|scenario| Ok((scenario.name.to_owned(), count(scenario)?))).collect();
    let now = Figures { compiler: compiler()?, figures: counted? };
    if std::env::var_os("GODEL_BLESS").is_some() {
        std::fs::write(FILE, now.to_string())?;
        println!("{now}\nwritten to {FILE}");
        return Ok(true);
    }
    let before: Figures = std::fs::read_to_string(FILE)?.parse()?;
    let comparison = compare::compare(&before, &now);
    println!("{comparison}profiles: callgrind_annotate {PROFILES}/callgrind.SCENARIO.out");
    Ok(comparison.passes())
}

fn count_some(names: &[String]) -> Result<bool, Box<dyn Error>> {
    for name in names {
        let figure = count(find(name)?)?;
        println!("{name}: {} instructions, {} each", figure.instructions, figure.each());
    }
    Ok(true)
}

fn find(name: &str) -> Result<&'static Scenario, String> {
    ALL.iter().find(|scenario| scenario.name == name).ok_or_else(|| format!("there is no scenario {name}"))
}

/// Runs this program under callgrind.
fn count(scenario: &Scenario) -> Result<Figure, Box<dyn Error>> {
    let profile = Path::new(PROFILES).join(format!("callgrind.{}.out", scenario.name));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=guard::measured*"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .args([RUN, scenario.name])
        .output()
        .map_err(|error| format!("valgrind does not start ({error}): `make setup` installs it"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let done = String::from_utf8_lossy(&output.stdout);
    let figure = output.status.success().then(|| Figure::of_run(&said, &done)).flatten();
    Ok(figure.ok_or_else(|| format!("{}: no count under callgrind:\n{said}", scenario.name))?)
}

/// Counts are comparable only between programs of one compiler and target.
fn compiler() -> Result<String, Box<dyn Error>> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let said = String::from_utf8(output.stdout)?;
    let field = |name| said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown");
    Ok(format!("{} {}", field("release: "), field("host: ")))
}

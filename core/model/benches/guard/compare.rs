//! Figures of the guard: as text, and against others.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// Instructions may differ by so many thousandths.
const TOLERANCE_PER_MILLE: u64 = 30;
/// Or by so many for each operation: of one of a few dozen that is what is inlined beside it.
const TOLERANCE_EACH: u64 = 3;
/// What a file of figures begins with.
const HEAD: &str = "\
# Instructions of the scenarios in core/model/src/scenarios.rs at their small size. `make bench-guard` compares with
# them, `GODEL_BLESS=1 make bench-guard` writes them anew. Counts hold for one compiler.
";

/// What one scenario took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) instructions: u64,
    pub(crate) n_ops: u64,
    pub(crate) checksum: u64,
}

/// Every figure of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Version and target.
    pub(crate) compiler: String,
    /// By scenario.
    pub(crate) figures: BTreeMap<String, Figure>,
}

/// How a scenario differs from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Within the tolerance.
    None,
    /// Takes more.
    Slower,
    /// Takes less: to be blessed, or the next loss goes unseen.
    Faster,
    /// Does not decide as before.
    DecidesOtherwise,
    /// Without a figure before.
    New,
    /// Without a figure now.
    Gone,
}

/// Figures before and now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    compilers: (String, String),
    lines: Vec<(String, Option<Figure>, Option<Figure>, Change)>,
}

/// A file of figures that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("guard.txt cannot be read: `{0}`")]
pub(crate) struct BadLine(pub(crate) String);

impl Figure {
    /// From what callgrind and the program said.
    pub(crate) fn of_run(callgrind: &str, done: &str) -> Option<Self> {
        let (_, collected) = callgrind.lines().find_map(|line| line.split_once("Collected :"))?;
        let (n_ops, checksum) = done.trim().split_once(' ')?;
        Some(Self {
            instructions: collected.trim().parse().ok()?,
            n_ops: n_ops.parse().ok()?,
            checksum: u64::from_str_radix(checksum, 16).ok()?,
        })
    }

    /// Instructions of one operation.
    pub(crate) fn each(self) -> u64 {
        self.instructions / self.n_ops.max(1)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}compiler {}", self.compiler)?;
        writeln!(f, "{:32} {:>12} {:>8} {:>8}  checksum", "# scenario", "instructions", "ops", "each")?;
        for (name, figure) in &self.figures {
            let Figure { instructions, n_ops, checksum } = figure;
            writeln!(f, "{name:32} {instructions:>12} {n_ops:>8} {:>8}  {checksum:016x}", figure.each())?;
        }
        Ok(())
    }
}

impl FromStr for Figures {
    type Err = BadLine;

    fn from_str(text: &str) -> Result<Self, BadLine> {
        let mut new = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line.strip_prefix("compiler ") {
                Some(compiler) => compiler.clone_into(&mut new.compiler),
                None => {
                    let (name, figure) = parse_line(line).ok_or_else(|| BadLine(line.to_owned()))?;
                    new.figures.insert(name, figure);
                }
            }
        }
        Ok(new)
    }
}

fn parse_line(line: &str) -> Option<(String, Figure)> {
    let [name, instructions, n_ops, _each, checksum] =
        line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let figure = Figure {
        instructions: instructions.parse().ok()?,
        n_ops: n_ops.parse().ok()?,
        checksum: u64::from_str_radix(checksum, 16).ok()?,
    };
    Some((name.to_owned(), figure))
}

/// Every scenario of either.
pub(crate) fn compare(before: &Figures, now: &Figures) -> Comparison {
    let mut names: Vec<&String> = before.figures.keys().chain(now.figures.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let line = |name: &String| {
        let (before, now) = (before.figures.get(name).copied(), now.figures.get(name).copied());
        (name.clone(), before, now, change(before, now))
    };
    Comparison {
        compilers: (before.compiler.clone(), now.compiler.clone()),
        lines: names.into_iter().map(line).collect(),
    }
}

fn change(before: Option<Figure>, now: Option<Figure>) -> Change {
    let (before, now) = match (before, now) {
        (Some(before), Some(now)) => (before, now),
        (None, _) => return Change::New,
        (_, None) => return Change::Gone,
    };
    let limit = before.instructions.saturating_mul(TOLERANCE_PER_MILLE) / 1000;
    let limit = limit.max(before.n_ops.saturating_mul(TOLERANCE_EACH));
    if (before.n_ops, before.checksum) != (now.n_ops, now.checksum) {
        Change::DecidesOtherwise
    } else if now.instructions > before.instructions.saturating_add(limit) {
        Change::Slower
    } else if now.instructions < before.instructions - limit {
        Change::Faster
    } else {
        Change::None
    }
}

impl Comparison {
    /// Nothing has changed, or the figures cannot be compared.
    pub(crate) fn passes(&self) -> bool {
        !self.same_compiler() || self.lines.iter().all(|(.., change)| *change == Change::None)
    }

    fn same_compiler(&self) -> bool {
        self.compilers.0 == self.compilers.1
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:32} {:>10} {:>10} {:>8}", "scenario", "before", "each now", "change")?;
        for (name, before, now, change) in &self.lines {
            let each = |figure: &Option<Figure>| {
                figure.map_or_else(|| "-".to_owned(), |figure| figure.each().to_string())
            };
            let words = match change {
                Change::None => "",
                Change::Slower => "SLOWER",
                Change::Faster => "FASTER",
                Change::DecidesOtherwise => "DECIDES OTHERWISE",
                Change::New => "NEW",
                Change::Gone => "GONE",
            };
            let percent = percent(*before, *now);
            writeln!(f, "{name:32} {:>10} {:>10} {percent:>8}  {words}", each(before), each(now))?;
        }
        let (before, now) = &self.compilers;
        if !self.same_compiler() {
            writeln!(f, "not compared: the committed figures are of {before}, these of {now}")
        } else if self.passes() {
            writeln!(f, "all within {TOLERANCE_PER_MILLE} thousandths, or {TOLERANCE_EACH} an operation")
        } else {
            writeln!(
                f,
                "if this is meant: GODEL_BLESS=1 make bench-guard, and commit core/model/benches/guard.txt"
            )
        }
    }
}

fn percent(before: Option<Figure>, now: Option<Figure>) -> String {
    let (Some(before), Some(now)) = (before, now) else { return String::new() };
    let (before, now) = (i128::from(before.instructions), i128::from(now.instructions));
    let tenths = (now - before) * 1000 / before.max(1);
    format!("{}{}.{} %", if tenths < 0 { '-' } else { '+' }, tenths.abs() / 10, tenths.abs() % 10)
}

//! `godel unit edit`: the unit as a file, changed in an editor or given as another file, and sent back under the revision
//! that was read.

use std::{
    io::{BufRead as _, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, Paint, shown},
    unit_file::{self, Loaded},
};
use godel_kit::config::env;
use godel_proto::v1;

use super::read;
use crate::{
    args::{EditArgs, split},
    command::each::{Done, UNCHANGED, each},
};

/// Where nothing else is said.
const EDITOR: &str = "vi";
/// Lines that stay as they are are shown this far around those that do not.
const CONTEXT: usize = 2;

pub(super) async fn edit(client: &Client, edit: &EditArgs, format: Format) -> Result<(), Failure> {
    let names = std::slice::from_ref(&edit.name);
    each(format, "unit", names, async |name| one(client, edit, &name).await).await.map(drop)
}

async fn one(client: &Client, edit: &EditArgs, name: &str) -> Result<Done, Failure> {
    let (namespace, name) = split(&edit.namespace, name);
    let known = client.get_unit(namespace, name).await?.unit.unwrap_or_default();
    let spec = known.spec.unwrap_or_default();
    let meta = spec.meta.clone().unwrap_or_default();
    if meta.name != name && meta.uid != name {
        let said =
            format!("no unit `{}`: give the full name; did you mean `{}`?", shown(name), shown(&meta.name));
        return Err(Failure::new(Code::NotFound, said));
    }
    if edit.revision > 0 && edit.revision != meta.revision {
        let said = format!("the unit is at revision {}, not {}", meta.revision, edit.revision);
        return Err(Failure::new(Code::Conflict, said).hint("it has changed: read it again and retry"));
    }
    let before = unit_file::to_file(&spec).map_err(|no_file| Failure::failed(no_file.to_string()))?;
    let (text, draft) = match &edit.file {
        Some(file) => (read(file)?, None),
        None => edited(&before, &meta)?,
    };
    let place = edit.file.clone().or_else(|| draft.clone()).unwrap_or_default();
    let wanted = parse(&text, &place, &spec).map_err(|failure| kept(failure, draft.as_deref()))?;
    let after = unit_file::to_file(&unit_file::filled(&wanted)).unwrap_or(text);
    if after == before {
        remove(draft.as_deref());
        return Ok(Done { said: Some("unchanged"), ..Done::at(UNCHANGED, 0) });
    }
    output::say(diff(&before, &after, Paint::stdout()));
    if !edit.yes && !agrees(&meta.name)? {
        return Err(kept(Failure::failed("nothing was changed"), draft.as_deref()));
    }
    let request = v1::UpdateUnitRequest {
        unit: Some(wanted.clone()),
        expected_revision: meta.revision,
        ..v1::UpdateUnitRequest::default()
    };
    match client.units(async |mut units| units.update_unit(request.clone()).await).await {
        Ok(answer) => {
            remove(draft.as_deref());
            let revision = answer.revision;
            match revision == meta.revision {
                true => Ok(Done { said: Some("unchanged"), ..Done::at(UNCHANGED, 0) }),
                false => Ok(Done::at("updated", revision)),
            }
        }
        Err(failure) if failure.code == Code::Conflict => {
            let hint = "somebody else has changed the unit meanwhile: edit it again";
            Err(kept(failure.hint(hint), draft.as_deref()))
        }
        Err(failure) => Err(kept(unit_file::in_keys(failure, &wanted), draft.as_deref())),
    }
}

/// The unit that a file says, with what only the record knows.
fn parse(text: &str, place: &Path, known: &v1::UnitSpec) -> Result<v1::UnitSpec, Failure> {
    let units =
        unit_file::parse(text).map_err(|mistakes| Failure::usage(mistakes.of(place)).hint(super::DOCS))?;
    let [Loaded { spec, .. }] = <[Loaded; 1]>::try_from(units)
        .map_err(|units| Failure::usage(format!("the file has {} units: give one", units.len())))?;
    let mut spec = spec;
    let of_record = known.meta.clone().unwrap_or_default();
    let meta = spec.meta.get_or_insert_default();
    if meta.name != of_record.name {
        let said =
            format!("the file is of unit `{}`, not of `{}`", shown(&meta.name), shown(&of_record.name));
        return Err(Failure::usage(said));
    }
    if meta.namespace.is_empty() {
        meta.namespace = of_record.namespace;
    }
    if meta.owner.is_empty() {
        meta.owner = of_record.owner;
    }
    if meta.uid.is_empty() {
        meta.uid = of_record.uid;
    }
    Ok(spec)
}

/// What the editor of the user makes of a text, and the file in which it stands until it is accepted.
fn edited(before: &str, meta: &v1::ObjectMeta) -> Result<(String, Option<PathBuf>), Failure> {
    let editor = ["VISUAL", "EDITOR"].into_iter().find_map(env).filter(|editor| !editor.trim().is_empty());
    let editor = editor.unwrap_or_else(|| EDITOR.to_owned());
    let path = std::env::temp_dir().join(format!("godel-{}.yaml", uuid::Uuid::now_v7()));
    let head = format!(
        "# Unit {}/{} at revision {}. Change it, save it and leave the editor; without a change nothing happens.\n",
        meta.namespace, meta.name, meta.revision
    );
    let failed = |what: &str, error: std::io::Error| Failure::failed(format!("{what}: {error}"));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(|error| failed(&format!("{} cannot be written", path.display()), error))?;
    file.write_all((head + before).as_bytes())
        .map_err(|error| failed(&format!("{} cannot be written", path.display()), error))?;
    drop(file);
    // As a shell reads it: an editor may have flags.
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(&path)
        .status()
        .map_err(|error| failed("the editor cannot be started", error))?;
    if !status.success() {
        remove(Some(&path));
        return Err(Failure::failed(format!("the editor `{}` ended with {status}", shown(&editor))));
    }
    Ok((read(&path)?, Some(path)))
}

/// What was written is not lost.
fn kept(failure: Failure, draft: Option<&Path>) -> Failure {
    match draft {
        None => failure,
        Some(path) => {
            let message = format!("{}\nyour draft is kept in {}", failure.message, path.display());
            Failure { message, ..failure }
        }
    }
}

fn remove(draft: Option<&Path>) {
    if let Some(path) = draft {
        // It is a copy of what is in the record.
        let _left = std::fs::remove_file(path);
    }
}

/// Asks on a terminal; elsewhere who gives the command means it.
fn agrees(name: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(true);
    }
    output::say(format!("change unit {}? [y/N]", shown(name)));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|error| Failure::failed(error.to_string()))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// What differs between two texts, line by line, with `-` and `+`.
fn diff(before: &str, after: &str, paint: Paint) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    // The longest common lines of what is left of both; files of units have a few hundred lines at most.
    let mut common = vec![vec![0u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j >= new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    let is_near = |at: usize| {
        let from = at.saturating_sub(CONTEXT);
        lines[from..(at + CONTEXT + 1).min(lines.len())].iter().any(|(mark, _)| *mark != ' ')
    };
    let shown_lines = lines.iter().enumerate().filter(|(at, _)| is_near(*at)).map(|(_, (mark, line))| {
        let line = shown(&format!("{mark} {line}")).into_owned();
        match mark {
            '-' => paint.bad(&line),
            '+' => paint.good(&line),
            _ => line,
        }
    });
    shown_lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_shown_with_what_is_around_it() {
        let before = "name: a\nqueue: default\npriority: 0\npool: guaranteed\nreplicas: 3\ntemplate: {}\n";
        let after = before.replace("priority: 0", "priority: 7");
        let expected =
            "  name: a\n  queue: default\n- priority: 0\n+ priority: 7\n  pool: guaranteed\n  replicas: 3";
        assert_eq!(diff(before, &after, Paint::plain()), expected);
        assert_eq!(diff(before, before, Paint::plain()), "");
        assert_eq!(diff("a\n", "b\nc\n", Paint::plain()), "- a\n+ b\n+ c");
    }

    #[test]
    fn a_file_of_another_unit_changes_nothing() {
        let known = unit_file::parse("name: web\nowner: alice\ntemplate: {}\n").unwrap().remove(0).spec;
        let read = |text: &str| parse(text, Path::new("f.yaml"), &known).map_err(|failure| failure.message);
        let spec = read("name: web\nreplicas: 2\ntemplate: {}\n").unwrap();
        assert_eq!(spec.meta.unwrap().owner, "alice", "the owner stays");
        assert_eq!(
            read("name: db\ntemplate: {}\n"),
            Err("the file is of unit `db`, not of `web`".to_owned())
        );
        let two = "name: web\ntemplate: {}\n---\nname: db\ntemplate: {}\n";
        assert_eq!(read(two), Err("the file has 2 units: give one".to_owned()));
    }
}

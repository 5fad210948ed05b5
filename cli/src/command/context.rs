//! `godel context`: the clusters that a person uses.

use godel_client::{
    client::Client,
    context::{Context, ContextError, ContextFile, Contexts},
    exit::{Code, Failure},
    output::{self, Format, View, ViewColumn},
};
use serde::Serialize;

use crate::args::context::{ContextSettings, ContextVerb, NamedContext};

/// Where state is unless something else says so.
pub(super) const DEFAULT_ADDRESS: &str = "http://127.0.0.1:7700";

/// A context as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ContextView {
    name: String,
    address: String,
    is_current: bool,
}

impl View for ContextView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("CURRENT", |view| if view.is_current { "*".to_owned() } else { String::new() }),
        ("NAME", |view| view.name.clone()),
        ("ADDRESS", |view| view.address.clone()),
    ];
}

/// The address of state: the one that is given, or that of the context that is named, or that of the current one.
pub(super) fn address(given: Option<String>, context: Option<&str>) -> Result<String, Failure> {
    if let Some(address) = given {
        return Ok(address);
    }
    let file = match ContextFile::of_environment() {
        // A process without a home, as a unit, has no contexts.
        Err(ContextError::NoHome) if context.is_none() => return Ok(DEFAULT_ADDRESS.to_owned()),
        file => file.map_err(|error| failed(&error))?,
    };
    let contexts = file.read().map_err(|error| failed(&error))?;
    let found = contexts.find(context).map_err(|error| failed(&error))?;
    Ok(found.map_or_else(|| DEFAULT_ADDRESS.to_owned(), |context| context.address.clone()))
}

pub(super) fn run(verb: ContextVerb, format: Format) -> Result<(), Failure> {
    let file = ContextFile::of_environment().map_err(|error| failed(&error))?;
    let change = |change: &dyn Fn(&mut Contexts) -> Result<(), ContextError>| {
        file.change(change).map_err(|error| failed(&error))
    };
    match verb {
        ContextVerb::List => {
            let contexts = file.read().map_err(|error| failed(&error))?;
            output::print_list(format, &views(&contexts), "contexts")
        }
        ContextVerb::Set(ContextSettings { context: NamedContext { name }, state }) => {
            // A malformed address is refused now, not at the next command.
            Client::new(&state)?;
            let contexts = change(&|contexts| contexts.put(&name, Context { address: state.clone() }))?;
            output::say(format!("context {name} leads to {state}"));
            if contexts.current() != Some(name.as_str()) {
                output::say(format!("`godel context use {name}` makes it the current one"));
            }
            Ok(())
        }
        ContextVerb::Use(NamedContext { name }) => {
            change(&|contexts| contexts.choose(&name))?;
            output::say(format!("commands go to {name} from now on"));
            Ok(())
        }
        ContextVerb::Delete(NamedContext { name }) => {
            let contexts = change(&|contexts| contexts.remove(&name))?;
            output::say(format!("context {name} deleted"));
            if contexts.current().is_none() && contexts.iter().next().is_some() {
                output::say("no context is the current one; choose one with `godel context use`");
            }
            Ok(())
        }
    }
}

fn views(contexts: &Contexts) -> Vec<ContextView> {
    let view = |(name, context): (&str, &Context)| ContextView {
        name: name.to_owned(),
        address: context.address.clone(),
        is_current: contexts.current() == Some(name),
    };
    contexts.iter().map(view).collect()
}

fn failed(error: &ContextError) -> Failure {
    let code = match error {
        ContextError::File { .. } => Code::Failed,
        ContextError::Unknown { .. } => Code::NotFound,
        ContextError::NoHome
        | ContextError::Broken { .. }
        | ContextError::Open { .. }
        | ContextError::BadName { .. } => Code::Usage,
    };
    Failure::chain(code, error)
}

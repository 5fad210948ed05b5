//! `godel context`: the clusters that a person uses.

use std::{
    io::{self, Read as _},
    path::Path,
    time::{Duration, Instant},
};

use godel_client::{
    access::Access,
    administrator::take_context,
    client::Client,
    context::{Context, ContextError, ContextFile, ContextToken, ContextTrust, Contexts},
    exit::{Code, Failure},
    output::{self, Format, View, ViewColumn},
    renewal::ContextRenewal,
};
use godel_kit::{
    address::{ServerAddress, listed, parse_list},
    task,
};
use godel_pki::{
    person_tokens::{BadToken, read_token},
    private_files,
};
use godel_proto::v1;
use serde::Serialize;

use crate::args::context::{ChosenContext, ContextSettings, ContextVerb, LoginArgs, NamedContext};

/// Where state is unless something else says so.
pub(super) const DEFAULT_ADDRESS: &str = "http://127.0.0.1:7700";

/// How long `login` waits for a socket that does not exist yet.
const SOCKET_WAIT: Duration = Duration::from_secs(10);
/// Interval at which `login` looks for the socket.
const SOCKET_POLL: Duration = Duration::from_millis(50);

/// Longest file with a token and roots.
const TOKEN_FILE_BYTES_MAX: u64 = 256 << 10;
/// Stands for standard input.
const STDIN: &str = "-";

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

/// Returns how to reach the cluster: at the given address, or by the named context, or by the current one. The token and the roots of the context are
/// renewed when they are old, now and while the command runs.
pub(super) async fn access(given: Option<String>, context: Option<&str>) -> Result<Access, Failure> {
    let Some((file, name, found)) = used_context(given.as_deref(), context)? else {
        return Ok(Access::from(given.as_deref().unwrap_or(DEFAULT_ADDRESS)));
    };
    let mut renewal = ContextRenewal::new(file, &name, &found).map_err(|error| failed(&error))?;
    renewal.renew().await;
    let access = renewal.access();
    task::spawn("context", renewal.keep());
    // Of several addresses in the context only those that are given.
    Ok(Access { address: given.unwrap_or(access.address), ..access })
}

/// Returns the context by which [`access`] reaches the cluster, with its file and its name; `None` if it uses none.
pub(super) fn used_context(
    given: Option<&str>,
    context: Option<&str>,
) -> Result<Option<(ContextFile, String, Context)>, Failure> {
    let file = match ContextFile::of_environment() {
        // A process without a home, as a unit, has no contexts.
        Err(ContextError::NoHome) if context.is_none() => return Ok(None),
        file => file.map_err(|error| failed(&error))?,
    };
    let is_plain = given.is_some_and(|given| !listed(given).all(|address| address.starts_with("https://")));
    let contexts =
        if is_plain { Contexts::default() } else { file.read().map_err(|error| failed(&error))? };
    let found = match given {
        Some(address) => contexts.leading_to(address),
        None => contexts.find(context).map_err(|error| failed(&error))?,
    };
    Ok(found.map(|(name, found)| (file, name.to_owned(), found.clone())))
}

fn cluster_of(context: &Context) -> String {
    context.trust.as_ref().map(|trust| trust.cluster.clone()).unwrap_or_default()
}

/// Keeps the context of a cluster that this process has started, under the cluster's name. What led to its address before leads nowhere any more.
/// Whether it is the current one.
///
/// # Errors
/// The file of contexts cannot be changed.
pub(crate) fn keep_context(context: &Context) -> Result<(String, bool), ContextError> {
    let name = cluster_of(context);
    let kept =
        ContextFile::of_environment()?.change(|contexts| contexts.supersede(&name, context.clone()))?;
    let is_current = kept.current() == Some(&name);
    Ok((name, is_current))
}

/// Forgets the contexts of a cluster that is gone for good.
pub(crate) fn forget_context(context: &Context) {
    let forgotten = ContextFile::of_environment().and_then(|file| {
        file.change(|contexts| {
            contexts.forget(context);
            Ok(())
        })
    });
    if let Err(error) = forgotten {
        output::say(format!("warning: the context of this cluster stays: {error}"));
    }
}

/// Takes a token from the socket of state on this machine, and keeps it in a context with the roots of the cluster.
async fn login(file: &ContextFile, wanted: LoginArgs) -> Result<(), Failure> {
    let LoginArgs { name, socket, state, token_file, roots } = wanted;
    // Refused now, not at the next command.
    let parsed = parse_list(&state, true).map_err(|bad| Failure::chain(Code::Usage, &bad))?;
    if !parsed.iter().all(|address| matches!(address, ServerAddress::Tls(_))) {
        return Err(Failure::usage(format!(
            "`{state}` is no https:// address, and a token is shown over TLS alone"
        ))
        .hint("`godel context set` keeps an address of plain text"));
    }
    let context = match token_file {
        Some(token_file) => login_with_token(file, &token_file, roots.as_deref(), &state).await?,
        None => login_at_socket(&socket, &state).await?,
    };
    let name = name.unwrap_or_else(|| cluster_of(&context));
    let contexts = file.change(|contexts| {
        let known = contexts.find(Some(&name)).ok().flatten();
        if known.is_some_and(|(_, known)| !known.is_akin(&context)) {
            return Err(ContextError::Taken { name: name.clone() });
        }
        contexts.put(&name, context)
    });
    say_where(&contexts.map_err(|error| failed(&error))?, &name, &state);
    Ok(())
}

async fn login_at_socket(socket: &Path, state: &str) -> Result<Context, Failure> {
    let socket = std::path::absolute(socket)
        .map_err(|error| Failure::failed(format!("{} cannot be found: {error}", socket.display())))?;
    wait_for_socket(&socket).await;
    let client = Client::new(&format!("unix:{}", socket.display()))?;
    take_context(&client, state).await
}

/// A context with the token of a file, which counts: state was asked whose it is. The roots are those behind the token, or in another file, or of a context
/// of the same cluster.
async fn login_with_token(
    file: &ContextFile,
    token_file: &Path,
    roots: Option<&Path>,
    state: &str,
) -> Result<Context, Failure> {
    let text = read_token_file(token_file)?;
    let (token, behind) = text.trim_start().split_once('\n').unwrap_or((text.trim(), ""));
    let of_token = |bad: BadToken| Failure::chain(Code::Usage, &bad);
    let (said, token) = (read_token(token.trim()).map_err(of_token)?, token.trim());
    let token = ContextToken::read(token).map_err(of_token)?;
    let cluster = said.cluster;
    let roots = match roots {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::failed(format!("{} cannot be read: {error}", path.display())))?,
        None if !behind.trim().is_empty() => behind.to_owned(),
        None => known_roots(file, &cluster)?,
    };
    let trust = Some(ContextTrust { cluster, roots, asked_ms: 0 });
    let context = Context { address: state.to_owned(), trust, token: Some(token) };
    let client = Client::new(&context.access().map_err(|error| failed(&error))?)?;
    let answer = client.read(async || client.identities().who_am_i(v1::WhoAmIRequest {}).await).await?;
    let v1::WhoAmIResponse { caller, principal, .. } = answer.into_inner();
    output::say(format!("logged in as {caller} with role {}", principal.unwrap_or_default().role));
    Ok(context)
}

fn read_token_file(path: &Path) -> Result<String, Failure> {
    let text = if path == Path::new(STDIN) {
        let mut text = Vec::new();
        let read = io::stdin().lock().take(TOKEN_FILE_BYTES_MAX).read_to_end(&mut text);
        read.map_err(|error| Failure::failed(format!("standard input cannot be read: {error}")))?;
        text
    } else {
        let max = usize::try_from(TOKEN_FILE_BYTES_MAX).unwrap_or(usize::MAX);
        let bytes = private_files::read(path, max);
        bytes.map_err(|error| Failure::chain(Code::Usage, &error))?.to_vec()
    };
    String::from_utf8(text).map_err(|_| Failure::usage(format!("{} holds no token", path.display())))
}

/// The roots of a cluster, as another context has them.
fn known_roots(file: &ContextFile, cluster: &str) -> Result<String, Failure> {
    let contexts = file.read().map_err(|error| failed(&error))?;
    let known = contexts.iter().filter_map(|(_, context)| context.trust.as_ref());
    let known = known.filter(|trust| trust.cluster == cluster).map(|trust| trust.roots.clone()).next();
    known.ok_or_else(|| {
        Failure::usage(format!("there is a token of cluster {cluster}, and no roots of it"))
            .hint("use a file of `godel token create --file`, or give the roots (`godel context roots`) with `--roots FILE`")
    })
}

/// Waits for the socket: a state that was just started opens it once it has read its store.
async fn wait_for_socket(socket: &Path) {
    let started = Instant::now();
    while !socket.exists() && started.elapsed() < SOCKET_WAIT {
        tokio::time::sleep(SOCKET_POLL).await;
    }
}

fn say_where(contexts: &Contexts, name: &str, state: &str) {
    output::say(format!("context {name} leads to {state}"));
    if contexts.current() != Some(name) {
        output::say(format!("`godel context use {name}` makes it the current one"));
    }
}

/// Adds the contexts of another file, for example of the one that a person has on another machine.
fn import(file: &ContextFile, from: &Path) -> Result<(), Failure> {
    let found = if from == Path::new(STDIN) {
        Contexts::read_from(io::stdin().lock(), Path::new("standard input"))
    } else if from.exists() {
        ContextFile::new(from).read()
    } else {
        return Err(Failure::new(Code::NotFound, format!("there is no file {}", from.display())));
    };
    let found = found.map_err(|error| failed(&error))?;
    if found.iter().next().is_none() {
        let from =
            if from == Path::new(STDIN) { "standard input".into() } else { from.display().to_string() };
        return Err(Failure::usage(format!("there are no contexts in {from}"))
            .hint("give it the file of contexts of another machine: ~/.config/godel/contexts.yaml"));
    }
    let kept = file.change(|contexts| {
        found.iter().try_for_each(|(name, context)| {
            let known = contexts.find(Some(name)).ok().flatten();
            let is_other = |known: &Context| known.address != context.address && !known.is_akin(context);
            if known.is_some_and(|(_, known)| is_other(known)) {
                return Err(ContextError::Taken { name: name.to_owned() });
            }
            contexts.supersede(name, context.clone())
        })
    });
    let kept = kept.map_err(|error| failed(&error))?;
    found.iter().for_each(|(name, context)| say_where(&kept, name, &context.address));
    Ok(())
}

/// The context of this name, or the current one, after its token and roots were renewed if they were old.
async fn renewed(file: &ContextFile, name: Option<&str>) -> Result<Context, Failure> {
    let contexts = file.read().map_err(|error| failed(&error))?;
    let Some((name, context)) = contexts.find(name).map_err(|error| failed(&error))? else {
        return Err(Failure::new(Code::NotFound, "there is no current context")
            .hint("`godel context login` creates one, `godel context use` chooses one"));
    };
    let mut renewal = ContextRenewal::new(file.clone(), name, context).map_err(|error| failed(&error))?;
    renewal.renew().await;
    Ok(renewal.context().clone())
}

fn no_identity(address: &str) -> Failure {
    Failure::usage(format!(
        "the context leads to {address}, which is plain text: it has no roots and no token"
    ))
    .hint("`godel context login` gets both from a state that speaks TLS")
}

pub(super) async fn run(verb: ContextVerb, format: Format) -> Result<(), Failure> {
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
            let contexts = change(&|contexts| {
                contexts.put(&name, Context { address: state.clone(), ..Context::default() })
            })?;
            say_where(&contexts, &name, &state);
            Ok(())
        }
        ContextVerb::Login(wanted) => login(&file, wanted).await,
        ContextVerb::Import { file: from } => import(&file, &from),
        ContextVerb::Roots(ChosenContext { name }) => {
            let context = renewed(&file, name.as_deref()).await?;
            let trust = context.trust.ok_or_else(|| no_identity(&context.address))?;
            output::print(&trust.roots)
        }
        ContextVerb::Token(ChosenContext { name }) => {
            let context = renewed(&file, name.as_deref()).await?;
            let token = context.token.ok_or_else(|| no_identity(&context.address))?;
            output::print(&format!("{}\n", token.token))
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
        | ContextError::Spoilt { .. }
        | ContextError::Taken { .. }
        | ContextError::Broken { .. }
        | ContextError::Open { .. }
        | ContextError::BadName { .. } => Code::Usage,
    };
    Failure::chain(code, error)
}

//! What a person's call is about, which the service judges that decodes it.

use std::sync::Arc;

use godel_domain::{change_line::CallCause, sight::Sight};
use godel_identity::permission::{
    CallObject, NAMESPACE_DEFAULT, Permission, PermissionRefusal, PersonRole, Principal, allow,
};
use tonic::Status;

use super::call_log::CallOrigin;
use crate::status;

/// A call as what it is about is judged by: that of a person, or one of others, who may act on everything that they may call about.
#[derive(Clone, Debug, Default)]
pub struct PersonCall(Option<PermittedCall>);

/// A call that a person may make, as far as its method goes.
#[derive(Clone, Debug)]
struct PermittedCall {
    principal: Arc<Principal>,
    method: &'static str,
    /// `None`: it came through no server.
    origin: Option<CallOrigin>,
}

impl PermittedCall {
    /// The call for the change log.
    fn cause(&self) -> CallCause {
        let address = self.origin.as_ref().map_or("", |origin| &origin.address);
        CallCause::new(&self.principal.name, self.method, address)
    }
}

impl PersonCall {
    /// A call of `method` by a principal who may call it.
    pub fn new(principal: Arc<Principal>, method: &'static str) -> Self {
        Self(Some(PermittedCall { principal, method, origin: None }))
    }

    /// The same call with where it came from.
    #[must_use]
    pub(crate) fn with_origin(self, origin: Option<CallOrigin>) -> Self {
        Self(self.0.map(|call| PermittedCall { origin, ..call }))
    }

    /// The principal; `None`: no person calls, or nobody was judged.
    pub fn principal(&self) -> Option<&Arc<Principal>> {
        self.0.as_ref().map(|call| &call.principal)
    }

    /// What the principal is called; `None` as of [`Self::principal`].
    pub fn name(&self) -> Option<&str> {
        self.principal().map(|principal| principal.name.as_str())
    }

    /// Whether the person may act in its own namespaces only.
    pub fn is_bound(&self) -> bool {
        self.principal().is_some_and(|principal| principal.role <= PersonRole::User)
    }

    /// The units that answers may show and name: all of them to others than persons.
    pub fn sight(&self) -> Sight {
        self.principal().map_or(Sight::All, |principal| principal.sight())
    }

    /// That the call may be about `object`. The change log has a line for it if not.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`.
    pub fn check(&self, object: &CallObject<'_>) -> Result<(), Status> {
        let Some(call) = &self.0 else { return Ok(()) };
        PermissionRefusal::judge(&call.principal, call.method, object).map_err(|refusal| {
            if let Some(origin) = &call.origin {
                let namespace = object.namespace.unwrap_or_default();
                let cause = call.cause().about(namespace, named_objects(object, refusal.permission));
                origin.note_refused(cause, refusal.permission.refused_for());
            }
            status::refused_call(&refusal.into())
        })
    }

    /// Whether the call may be about `object`, where it is left out otherwise: nothing is refused, and the change log has no line.
    pub fn may(&self, object: &CallObject<'_>) -> bool {
        self.0.as_ref().is_none_or(|call| allow(&call.principal, call.method, object) == Permission::Granted)
    }

    /// On whose behalf a transaction is made that does what the call asks for; `None`: no person's. An empty `namespace` means that the objects, as
    /// `queue/batch`, are in none.
    pub fn cause(&self, namespace: &str, objects: impl IntoIterator<Item = String>) -> Option<CallCause> {
        self.0.as_ref().map(|call| call.cause().about(namespace, objects))
    }

    /// As [`Self::cause`], for a call about the unit `name` in `namespace`; an empty one means the default one.
    pub fn cause_about_unit(&self, namespace: &str, name: &str) -> Option<CallCause> {
        let namespace = if namespace.is_empty() { NAMESPACE_DEFAULT } else { namespace };
        self.cause(namespace, [format!("unit/{namespace}/{name}")])
    }

    /// Has the change log get a line for what the call has done without a transaction.
    pub fn note_done(&self, objects: impl IntoIterator<Item = String>) {
        let call = self.0.as_ref().and_then(|call| Some((call, call.origin.as_ref()?)));
        if let Some((call, origin)) = call {
            origin.note_done(call.cause().about("", objects));
        }
    }

    /// The namespace that is meant, after a check of it: the given one, or the principal's default one.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`.
    pub fn namespace(&self, given: String) -> Result<String, Status> {
        self.check(&CallObject { namespace: Some(&given), ..CallObject::default() })?;
        Ok(self.default_namespace(given))
    }

    /// The namespace that is meant: the given one, or the principal's default one.
    pub fn default_namespace(&self, given: String) -> String {
        match &self.0 {
            Some(PermittedCall { principal, .. }) if given.is_empty() => principal.default_namespace.clone(),
            Some(_) | None => given,
        }
    }
}

/// What of an object a refusal is about, as the change log names it.
fn named_objects(object: &CallObject<'_>, permission: Permission) -> Option<String> {
    let CallObject { namespace, queue, node: _, owner } = *object;
    match permission {
        Permission::Granted | Permission::NotForPersons | Permission::Role(_) | Permission::Unproven => None,
        Permission::Namespace => namespace.map(|name| format!("namespace/{name}")),
        Permission::Queue => queue.map(|name| format!("queue/{name}")),
        Permission::Owner => owner.map(|name| format!("owner/{name}")),
        Permission::OtherPrincipal => owner.map(|name| format!("principal/{name}")),
    }
}

/// What a person's call is judged by, as each server says: of others, and of a request that came through no server, nothing is judged.
pub fn person_call<T>(request: &tonic::Request<T>) -> PersonCall {
    request.extensions().get::<PersonCall>().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Request};

    use super::*;
    use crate::status::{has_reason, reason};

    const CANCEL: &str = "/godel.v1.UnitService/CancelUnit";

    fn request_of(role: PersonRole) -> Request<()> {
        let mut principal = Principal::new("ann", role);
        principal.default_namespace = "ann".to_owned();
        let mut request = Request::new(());
        request.extensions_mut().insert(PersonCall::new(Arc::new(principal), CANCEL));
        request
    }

    #[test]
    fn a_user_acts_in_its_namespaces_and_others_everywhere() {
        let user = person_call(&request_of(PersonRole::User));
        assert_eq!(user.namespace(String::new()).unwrap(), "ann");
        assert_eq!(user.namespace("ann".to_owned()).unwrap(), "ann");
        let refusal = user.namespace("prod".to_owned()).unwrap_err();
        assert_eq!(refusal.code(), Code::PermissionDenied);
        assert!(has_reason(&refusal, reason::NOT_ALLOWED), "{refusal}");
        assert!(refusal.message().contains("in namespace prod"), "{refusal}");
        assert_eq!(user.default_namespace("prod".to_owned()), "prod");
        assert!(user.is_bound() && !person_call(&Request::new(())).is_bound());
        let operator = person_call(&request_of(PersonRole::Operator));
        assert_eq!(operator.namespace("prod".to_owned()).unwrap(), "prod");
        assert_eq!(operator.namespace(String::new()).unwrap(), "ann");
        assert_eq!(user.sight(), Sight::of(["ann".to_owned()]).with_units_of("ann"));
        assert!(operator.sight().is_all());
        let process = person_call(&Request::new(()));
        assert!(process.sight().is_all());
        assert_eq!(process.namespace("prod".to_owned()).unwrap(), "prod");
        assert_eq!(process.namespace(String::new()).unwrap(), "");
        assert!(process.principal().is_none());
    }
}

//! Names of tables and columns as they stand in a statement. Knows quotes, not tables.

/// A table, with or without its schema. The server looks for one without along its `search_path`.
///
/// # Examples
/// ```
/// # use tenure_postgres::Table;
/// assert_eq!(Table::from("account").to_string(), r#""account""#);
/// assert_eq!(Table::from(("bank", "account")).to_string(), r#""bank"."account""#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    schema: Option<String>,
    name: String,
}

impl Table {
    /// Something of another name in the same schema.
    pub(super) fn sibling(&self, name: &str) -> Self {
        Self { schema: self.schema.clone(), name: name.to_owned() }
    }
}

impl From<&str> for Table {
    fn from(name: &str) -> Self {
        Self { schema: None, name: name.to_owned() }
    }
}

impl From<(&str, &str)> for Table {
    fn from((schema, name): (&str, &str)) -> Self {
        Self { schema: Some(schema.to_owned()), name: name.to_owned() }
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{}.", quoted(schema))?;
        }
        f.write_str(&quoted(&self.name))
    }
}

/// An identifier. The server ends a statement at a NUL, which no name can have.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\0', "").replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_quotes() {
        assert_eq!(quoted(r#"a"; DROP TABLE b; --"#), r#""a""; DROP TABLE b; --""#);
        assert_eq!(quoted("a\0b"), r#""ab""#);
    }
}

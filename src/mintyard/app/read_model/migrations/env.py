"""How a migration runs: on the connection and inside the transaction that `migration.migrate_schema` hands in."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()

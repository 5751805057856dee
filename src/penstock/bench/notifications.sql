-- The table of a notification service: one row per message, nine columns.
CREATE TABLE notifications (
    id                  uuid PRIMARY KEY,
    service_id          uuid NOT NULL,
    template_id         uuid NOT NULL,
    job_id              uuid,
    notification_type   text NOT NULL,
    key_type            text NOT NULL,
    notification_status text NOT NULL,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz
);

-- As replica identity this index makes Postgres log the old status when it changes, and the status
-- of a deleted row, for far less WAL than REPLICA IDENTITY FULL.
CREATE UNIQUE INDEX notifications_id_status ON notifications (id, notification_status);

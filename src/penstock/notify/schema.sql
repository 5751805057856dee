-- The tables of a notification service: it sends e-mails, text messages and letters for others.
--
--     psql "$DSN" -1 -v ON_ERROR_STOP=1 -f schema.sql
--
-- Nothing here is made for Penstock but the replica identities at the end.

-- Who sends.
CREATE TABLE services (
    id   uuid PRIMARY KEY,
    name text NOT NULL
);

-- What a service sends: each template is for one kind of message.
CREATE TABLE templates (
    id                uuid PRIMARY KEY,
    service_id        uuid NOT NULL REFERENCES services,
    notification_type text NOT NULL CHECK (notification_type IN ('email', 'sms', 'letter')),
    name              text NOT NULL
);

-- Where a message can be in its life.
CREATE TABLE notification_status_types (
    name text PRIMARY KEY
);

INSERT INTO notification_status_types (name) VALUES
    ('created'),            -- accepted, and waiting
    ('sending'),            -- with a provider
    ('sent'),               -- gone out; a receipt may come, or never
    ('delivered'),          -- the receipt says that it arrived
    ('temporary-failure'),  -- a full mailbox, a phone that is off
    ('permanent-failure');  -- no such address

-- One row per message: hundreds of millions of them, and the reason why nobody wants COUNT(*) here.
CREATE TABLE notifications (
    id                  uuid PRIMARY KEY,
    service_id          uuid NOT NULL REFERENCES services,
    template_id         uuid NOT NULL REFERENCES templates,
    job_id              uuid,           -- the upload it came with; NULL: sent by itself
    notification_type   text NOT NULL,  -- its template's
    key_type            text NOT NULL,  -- normal, team (to the service's own people) or test
    notification_status text NOT NULL REFERENCES notification_status_types,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz
);

-- The sender looks for the oldest that wait, the archive for the oldest that are done.
CREATE INDEX notifications_status_created_at ON notifications (notification_status, created_at);

-- Where messages go after some days. Receipts that come late still change their status here, and
-- after some months they are deleted for good.
CREATE TABLE notification_history (
    id                  uuid PRIMARY KEY,
    service_id          uuid NOT NULL REFERENCES services,
    template_id         uuid NOT NULL REFERENCES templates,
    job_id              uuid,
    notification_type   text NOT NULL,
    key_type            text NOT NULL,
    notification_status text NOT NULL REFERENCES notification_status_types,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz
);

-- The purge looks for the oldest.
CREATE INDEX notification_history_created_at ON notification_history (created_at);

-- Replica identity: which old values UPDATE and DELETE write to the WAL.
--
-- A count goes down by what a row was. The new row does not tell that, so the old values must be in
-- the WAL. By default those of the primary key are, which nobody counts by. There are three ways to
-- have more:
--
-- 1. An index over the key and the status, the only column that we count by and that ever changes:
--
--        ALTER TABLE notifications REPLICA IDENTITY USING INDEX notifications_id_status;
--
--    gives the old status when it changes. All else that we count by is in the new row, and is
--    declared `immutable`. The least WAL; and it cannot do deletes: of a row that goes, the WAL has
--    id and status, and not which service's it was, which template's or from which day. For counts
--    that deletes do not lower, this is the best; the example's README shows it.
CREATE UNIQUE INDEX notifications_id_status ON notifications (id, notification_status);

-- 2. An index over everything that we count by gives deletes as well. Such an index must be unique,
--    neither partial nor deferrable, and all its columns NOT NULL. job_id may be NULL: not here. And
--    it is one more wide index, written whenever the status changes.
--
-- 3. FULL: the whole old row, NULL or not. This is what the example uses, because its counts are to
--    be those of the rows that exist, through archiving and purging. Where rows hold long texts, it
--    writes them once more for each UPDATE and DELETE: there, give job_id a value that means none,
--    and use the second way. These rows are narrow. On PostgreSQL 18, in bytes of WAL for each:
--
--                              first     second    FULL
--        a change of status      553        799     612
--        a delete                100        153     164
ALTER TABLE notifications REPLICA IDENTITY FULL;
ALTER TABLE notification_history REPLICA IDENTITY FULL;

-- The tables that the dashboard reads, kept by Penstock, and a function to read one of them.
--
--     psql "$DSN" -1 -v ON_ERROR_STOP=1 -f targets.sql
--
-- `penstock setup` would make plain ones by itself. These are made as a team's own migrations make
-- tables, and `penstock setup` only checks them. They may be in another database than the source
-- (`target_dsn` in penstock.toml), so nothing here refers to the source's tables.

-- By all seven: what everything else is rolled up from.
CREATE TABLE ft_notification_status (
    bst_date            date NOT NULL,  -- of the day in Britain on which it was created
    template_id         uuid NOT NULL,
    service_id          uuid NOT NULL,
    job_id              uuid,
    notification_type   text NOT NULL,
    key_type            text NOT NULL,
    notification_status text NOT NULL,
    count               integer NOT NULL DEFAULT 0,
    -- For counts, NULL is a value like any other: one row for all that came without a job.
    UNIQUE NULLS NOT DISTINCT (bst_date, template_id, service_id, job_id, notification_type,
                               key_type, notification_status)
);
CREATE INDEX ft_notification_status_service_date ON ft_notification_status (service_id, bst_date);

-- By service, template, type and status: a dashboard's first page.
CREATE TABLE ft_service_stats (
    -- For frameworks that want a key of one column; Penstock leaves it to its default.
    id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    service_id          uuid NOT NULL,
    template_id         uuid NOT NULL,
    notification_type   text NOT NULL,
    notification_status text NOT NULL,
    count               integer NOT NULL DEFAULT 0,
    -- Deltas find their row by it. It also serves whoever asks for a service.
    CONSTRAINT ft_service_stats_dimensions_key
        UNIQUE (service_id, template_id, notification_type, notification_status)
);
CREATE INDEX ft_service_stats_template_id ON ft_service_stats (template_id);
CREATE INDEX ft_service_stats_notification_type ON ft_service_stats (notification_type);
CREATE INDEX ft_service_stats_notification_status ON ft_service_stats (notification_status);

-- By day, service, type and status.
CREATE TABLE ft_daily_stats (
    bst_date            date NOT NULL,
    service_id          uuid NOT NULL,
    notification_type   text NOT NULL,
    notification_status text NOT NULL,
    count               integer NOT NULL DEFAULT 0,
    PRIMARY KEY (bst_date, service_id, notification_type, notification_status)
);
CREATE INDEX ft_daily_stats_service_id ON ft_daily_stats (service_id, bst_date);

-- The counts of one service:
--
--     SELECT * FROM service_stats('…');
--
-- A program that forgot the id must not get the counts of all services, or of none, and think that
-- they are right.
CREATE FUNCTION service_stats(service uuid)
RETURNS TABLE (template_id uuid, notification_type text, notification_status text, count integer)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF service IS NULL OR service = '00000000-0000-0000-0000-000000000000' THEN
        RAISE EXCEPTION 'service_stats needs the id of a service, and got none'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Give the id of one service: SELECT * FROM service_stats(''…'')';
    END IF;
    RETURN QUERY
        SELECT s.template_id, s.notification_type, s.notification_status, s.count
          FROM ft_service_stats AS s
         -- A row stays when its count has come down to nothing.
         WHERE s.service_id = service AND s.count > 0
         ORDER BY s.template_id, s.notification_status;
END
$$;

-- The tables of lpm.db, as numbered migrations. They never change: stores of every schema exist.
-- Schema 1
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

    CREATE TABLE jobs (
        id           INTEGER PRIMARY KEY,
        name         TEXT NOT NULL UNIQUE,
        key          TEXT NOT NULL,              -- what an import is known by while the job is open
        status       TEXT NOT NULL,              -- importing, open, done
        queue        TEXT NOT NULL,
        source       TEXT NOT NULL,
        source_file  TEXT,
        batch_size   INTEGER NOT NULL,
        -- tasks accepted; decides whether pages send events
        size         INTEGER NOT NULL DEFAULT 0,
        created_at   REAL NOT NULL,
        completed_at REAL,
        -- a `run` waits for it, and has not reported its end yet
        watched      INTEGER NOT NULL DEFAULT 0
    );
    CREATE UNIQUE INDEX jobs_by_key ON jobs(key) WHERE status <> 'done';

    CREATE TABLE tasks (
        id            INTEGER PRIMARY KEY,
        task_id       TEXT NOT NULL,
        external_id   TEXT,
        job_id        INTEGER,
        url           TEXT NOT NULL,
        url_key       BLOB NOT NULL,
        domain        TEXT NOT NULL,
        parcel_id     TEXT NOT NULL DEFAULT '',
        status        TEXT NOT NULL DEFAULT 'pending',
        queue         TEXT NOT NULL,
        priority      INTEGER NOT NULL,
        deadline      REAL NOT NULL,
        not_before    REAL NOT NULL DEFAULT 0,   -- 0: due now
        fence         INTEGER NOT NULL DEFAULT 0,
        attempts      INTEGER NOT NULL DEFAULT 0,
        failures      INTEGER NOT NULL DEFAULT 0,
        strikes       INTEGER NOT NULL DEFAULT 0,
        owner         TEXT,
        leased_at     REAL,
        message_id    TEXT,                      -- the Celery id it was published under
        published_at  REAL,
        error_type    TEXT,
        error_message TEXT,
        source        TEXT NOT NULL,
        source_file   TEXT,
        source_line   INTEGER,
        input         TEXT,
        -- given on this machine's command line: may name loopback
        loopback      INTEGER NOT NULL DEFAULT 0,
        imported_at   REAL NOT NULL,
        completed_at  REAL,
        is_open       INTEGER GENERATED ALWAYS
            AS (CASE WHEN status IN ('pending', 'processing') THEN 1 END) VIRTUAL
    );
    CREATE UNIQUE INDEX tasks_by_task_id ON tasks(task_id);
    CREATE UNIQUE INDEX tasks_by_url ON tasks(url_key, parcel_id, is_open);
    CREATE UNIQUE INDEX tasks_by_external_id ON tasks(external_id, source)
        WHERE external_id IS NOT NULL;
    CREATE INDEX tasks_by_job ON tasks(job_id, status);
    CREATE INDEX tasks_due ON tasks(queue, priority, deadline, domain, id)
        WHERE status = 'pending' AND not_before = 0;
    CREATE INDEX tasks_waiting ON tasks(not_before) WHERE status = 'pending' AND not_before > 0;
    CREATE INDEX tasks_published ON tasks(message_id) WHERE status = 'pending'
        AND message_id IS NOT NULL;
    CREATE INDEX tasks_leased ON tasks(owner) WHERE status = 'processing';

    -- Further rows of input that mean a task which is there already: it counts for their job too.
    CREATE TABLE job_links (
        job_id      INTEGER NOT NULL,
        task        INTEGER NOT NULL,
        source_line INTEGER NOT NULL,
        input       TEXT,
        PRIMARY KEY (job_id, task, source_line)
    ) WITHOUT ROWID;
    CREATE INDEX job_links_by_task ON job_links(task);

    CREATE TABLE raw_segments (
        name       TEXT PRIMARY KEY,
        end        INTEGER NOT NULL,             -- committed bytes; what lies behind them is cut
        created_at REAL NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE results (
        task          INTEGER PRIMARY KEY,
        record        TEXT NOT NULL,
        final_url     TEXT NOT NULL,
        status_code   INTEGER NOT NULL,
        content_type  TEXT NOT NULL,
        verdict       TEXT NOT NULL,
        bytes         INTEGER NOT NULL,
        body_sha256   TEXT NOT NULL,
        fetch_ms      REAL NOT NULL,
        parse_ms      REAL NOT NULL,
        parser        TEXT NOT NULL,
        parser_version TEXT NOT NULL,
        raw_segment   TEXT,
        raw_offset    INTEGER,
        raw_length    INTEGER,
        scraped_at    REAL NOT NULL
    );

    CREATE TABLE outbox (
        task       INTEGER PRIMARY KEY,
        state      TEXT NOT NULL,                -- held, ready, synced
        created_at REAL NOT NULL,
        synced_at  REAL
    );
    CREATE INDEX outbox_ready ON outbox(task) WHERE state = 'ready';

    CREATE TABLE events (
        id     INTEGER PRIMARY KEY,
        task   INTEGER NOT NULL,
        at     REAL NOT NULL,
        kind   TEXT NOT NULL,
        detail TEXT NOT NULL
    );
    CREATE INDEX events_by_task ON events(task);

    CREATE VIEW standalone_tasks AS SELECT
        task_id, url, status, message_id AS celery_task_id,
        strftime('%Y-%m-%dT%H:%M:%fZ', imported_at, 'unixepoch') AS imported_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', completed_at, 'unixepoch') AS completed_at
    FROM tasks;

-- Schema 2
    ALTER TABLE jobs ADD COLUMN deadline REAL;
    ALTER TABLE jobs ADD COLUMN hold TEXT;       -- paused, cancelled
    CREATE INDEX jobs_on_hold ON jobs(id) WHERE hold IS NOT NULL AND status <> 'done';
    -- left pending/ for an archive, and is not projected again
    ALTER TABLE outbox ADD COLUMN archived_at REAL;
    CREATE INDEX tasks_by_deadline ON tasks(deadline) WHERE status = 'pending' AND deadline < 9e15;

    -- Rows of input that no task could be made of: with them every row of a file is accounted for.
    CREATE TABLE rejected_rows (
        job_id      INTEGER NOT NULL,
        source_line INTEGER NOT NULL,
        reason      TEXT NOT NULL,
        text        TEXT NOT NULL,
        PRIMARY KEY (job_id, source_line)
    ) WITHOUT ROWID;

    -- What was handed over: each result that the filter lets through and whose last event is at
    -- most `horizon`.
    CREATE TABLE exports (
        id      INTEGER PRIMARY KEY,
        at      REAL NOT NULL,
        file    TEXT NOT NULL,
        format  TEXT NOT NULL,
        job_id  INTEGER,                         -- of this job only
        since   REAL,                            -- scraped at this time or later only
        results INTEGER NOT NULL,
        horizon INTEGER NOT NULL
    );

-- Schema 3
    -- JSON: the rate that was asked for, whether robots.txt is ignored
    ALTER TABLE jobs ADD COLUMN options TEXT;

    ALTER TABLE results ADD COLUMN site TEXT NOT NULL DEFAULT 'default';
    ALTER TABLE results ADD COLUMN site_version TEXT NOT NULL DEFAULT '';
    -- the first task with the same content, if there was one before
    ALTER TABLE results ADD COLUMN same_as INTEGER;
    CREATE INDEX results_by_content ON results(substr(body_sha256, 1, 12));

    -- What the last page of a URL said about itself, so that one can ask whether it has changed.
    CREATE TABLE validators (
        url_key       BLOB PRIMARY KEY,
        etag          TEXT,
        last_modified TEXT,
        task          INTEGER NOT NULL           -- whose result the page is
    ) WITHOUT ROWID;

-- Schema 4
    -- A Gateway's task is known by the Gateway's own id: each gets its own answer, whatever URL it
    -- shares with others.
    DROP INDEX tasks_by_url;
    CREATE UNIQUE INDEX tasks_by_url ON tasks(url_key, parcel_id, is_open,
        iif(source = 'gateway', external_id, ''));
    ALTER TABLE tasks ADD COLUMN platform TEXT;      -- the site that a Gateway's task names
    CREATE INDEX tasks_of_gateway ON tasks(status) WHERE source = 'gateway';

    -- the request that it is sent in, again and again, until answered
    ALTER TABLE outbox ADD COLUMN batch TEXT;
    -- the Gateway has confirmed the page; 0: there is none to be sent
    ALTER TABLE outbox ADD COLUMN raw_sent_at REAL;
    -- its deadline had passed when it was first sent
    ALTER TABLE outbox ADD COLUMN late INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE outbox ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE outbox ADD COLUMN not_before REAL NOT NULL DEFAULT 0;
    ALTER TABLE outbox ADD COLUMN code INTEGER;      -- the Gateway's last refusal: its status …
    -- … and its words; a fourth state is `rejected`
    ALTER TABLE outbox ADD COLUMN problem TEXT;
    DROP INDEX outbox_ready;
    CREATE INDEX outbox_ready ON outbox(created_at, task) WHERE state = 'ready'
        AND raw_sent_at IS NOT NULL;
    CREATE INDEX outbox_pages ON outbox(created_at, task) WHERE state = 'ready'
        AND raw_sent_at IS NULL;

    -- What a Gateway is to hear of its tasks that ended without a result.
    CREATE TABLE reports (
        task       INTEGER PRIMARY KEY,
        state      TEXT NOT NULL,                    -- ready, synced, rejected
        created_at REAL NOT NULL,
        synced_at  REAL,
        tries      INTEGER NOT NULL DEFAULT 0,
        not_before REAL NOT NULL DEFAULT 0,
        code       INTEGER,
        problem    TEXT
    );
    CREATE INDEX reports_ready ON reports(created_at, task) WHERE state = 'ready';
    CREATE TRIGGER report AFTER UPDATE OF status ON tasks
    WHEN new.source = 'gateway' AND new.status IN ('failed', 'skipped', 'expired')
    BEGIN
        INSERT OR REPLACE INTO reports (task, state, created_at) VALUES (new.id, 'ready',
            ifnull(new.completed_at, 0));
    END;
    CREATE TRIGGER report_no_more AFTER UPDATE OF status ON tasks
    WHEN new.source = 'gateway' AND old.status IN ('failed', 'skipped', 'expired')
         AND new.status IN ('pending', 'completed')
    BEGIN
        DELETE FROM reports WHERE task = new.id;
    END;

-- Schema 5
    -- Witnesses beside `size`: how many rows of input an import has put into the other two tables.
    ALTER TABLE jobs ADD COLUMN linked INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN rejected INTEGER NOT NULL DEFAULT 0;
    UPDATE jobs SET linked = (SELECT count(*) FROM job_links WHERE job_id = jobs.id),
                    rejected = (SELECT count(*) FROM rejected_rows WHERE job_id = jobs.id);

    -- What a repair could not save: its job is unaccounted for until `settled_at`.
    CREATE TABLE losses (
        id         INTEGER PRIMARY KEY,
        job_id     INTEGER NOT NULL,
        at         REAL NOT NULL,
        kind       TEXT NOT NULL,                -- rows, which an import brings back, or pages
        what       TEXT NOT NULL,
        settled_at REAL,
        how        TEXT                          -- imported again, accepted
    );
    CREATE INDEX losses_by_job ON losses(job_id);

    -- The files of a job: one that has no end, and that nobody reads, was broken off.
    CREATE TABLE imports (
        id       INTEGER PRIMARY KEY,
        job_id   INTEGER NOT NULL,
        key      TEXT NOT NULL,                  -- of the job
        checksum TEXT NOT NULL,
        file     TEXT NOT NULL,
        rows     INTEGER NOT NULL DEFAULT 0,     -- once it was read to its end
        ended_at REAL
    );
    CREATE UNIQUE INDEX imports_by_job ON imports(job_id, checksum);

    -- Deaths of workers that a page was in flight at and nobody could be blamed for: after some it
    -- is tried alone.
    ALTER TABLE tasks ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
    DROP INDEX tasks_due;
    CREATE INDEX tasks_due ON tasks(queue, priority, deadline, domain, id)
        WHERE status = 'pending' AND not_before = 0 AND deaths < 3;
    CREATE INDEX tasks_suspected ON tasks(queue, priority, deadline, id)
        WHERE status = 'pending' AND not_before = 0 AND deaths >= 3;

-- Schema 6
    -- A row of input is identified by the number of its file within the job, from 0, its line, and
    -- its place on that line, from 1. Rows of earlier schemas have number 0 whatever their file,
    -- and are identified by their line alone.
    ALTER TABLE tasks ADD COLUMN file_number INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN source_item INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE imports ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN files INTEGER NOT NULL DEFAULT 0; -- that were given a number
    UPDATE jobs SET files = max(1,
        (SELECT count(*) FROM imports WHERE job_id = jobs.id),
        iif(key LIKE 'name:%', (SELECT count(DISTINCT source_file) FROM tasks
            WHERE job_id = jobs.id), 1))
    WHERE source <> 'gateway';

    CREATE TABLE new_links (
        job_id      INTEGER NOT NULL,
        task        INTEGER NOT NULL,
        source_line INTEGER NOT NULL,
        input       TEXT,
        file_number INTEGER NOT NULL DEFAULT 0,
        source_item INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (job_id, task, file_number, source_line, source_item)
    ) WITHOUT ROWID;
    INSERT INTO new_links (job_id, task, source_line, input)
        SELECT job_id, task, source_line, input FROM job_links;
    DROP TABLE job_links;
    ALTER TABLE new_links RENAME TO job_links;
    CREATE INDEX job_links_by_task ON job_links(task);

    CREATE TABLE new_rejects (
        job_id      INTEGER NOT NULL,
        source_line INTEGER NOT NULL,
        reason      TEXT NOT NULL,
        text        TEXT NOT NULL,
        file_number INTEGER NOT NULL DEFAULT 0,
        source_item INTEGER NOT NULL DEFAULT 1,
        PRIMARY KEY (job_id, file_number, source_line, source_item)
    ) WITHOUT ROWID;
    INSERT INTO new_rejects (job_id, source_line, reason, text)
        SELECT job_id, source_line, reason, text FROM rejected_rows;
    DROP TABLE rejected_rows;
    ALTER TABLE new_rejects RENAME TO rejected_rows;

    -- A lost row opens the imports of its job again: whether they have ended since, no clock has
    -- to tell.
    UPDATE imports SET ended_at = NULL WHERE ended_at <= (
        SELECT max(at) FROM losses WHERE job_id = imports.job_id AND kind = 'rows'
            AND settled_at IS NULL);

-- Schema 7
    -- By these the doctor knows a row of input with a wrong byte; rows of earlier schemas have
    -- none.
    ALTER TABLE tasks ADD COLUMN row_crc32 INTEGER;
    ALTER TABLE job_links ADD COLUMN row_crc32 INTEGER;

    -- A parameter such as utm_x made no other page before, nor did the order of the values of one
    -- parameter.
    UPDATE tasks SET url_key = new_url_key(url, url_key) WHERE url LIKE '%?%'
        AND url_key <> new_url_key(url, url_key);
    DELETE FROM validators WHERE url_key NOT IN (SELECT url_key FROM tasks
        WHERE id = validators.task);

-- Schema 8
    -- What a Gateway stores results under, as a JSON list: parcel_id, platform, state, county. All
    -- that was ever sent.
    CREATE TABLE delivery_keys (
        key  TEXT PRIMARY KEY,
        task INTEGER NOT NULL                    -- the last one that was sent under it
    ) WITHOUT ROWID;
    INSERT OR REPLACE INTO delivery_keys
        SELECT json_array(parcel_id, ifnull(input ->> '$.platform', '') || '',
            ifnull(input ->> '$.state', '') || '',
                          ifnull(input ->> '$.county', '') || ''), id
        FROM (SELECT id, parcel_id, iif(json_valid(input), input, '{}') AS input FROM tasks)
            JOIN outbox ON task = id
        WHERE state IN ('synced', 'rejected') OR batch IS NOT NULL OR tries > 0 ORDER BY id;
    -- its first delivery may have hit another's row
    ALTER TABLE outbox ADD COLUMN replaced INTEGER NOT NULL DEFAULT 0;

    -- A Gateway counts a task as ours until it hears of its end, also where it has refused the
    -- result for good.
    CREATE TRIGGER report_rejected AFTER UPDATE OF state ON outbox
    WHEN new.state = 'rejected' AND old.state <> 'rejected'
    BEGIN
        INSERT OR REPLACE INTO reports (task, state, created_at)
            SELECT id, 'ready', new.created_at FROM tasks WHERE id = new.task
                AND source = 'gateway';
    END;
    CREATE TRIGGER report_rejected_no_more AFTER UPDATE OF state ON outbox
    WHEN old.state = 'rejected' AND new.state <> 'rejected'
    BEGIN
        DELETE FROM reports WHERE task = new.task;
    END;
    INSERT OR IGNORE INTO reports (task, state, created_at)
        SELECT task, 'ready', created_at FROM outbox JOIN tasks ON id = task
        WHERE state = 'rejected' AND source = 'gateway';

    -- With each failure a task goes behind the next thousand: some pages that never come must not
    -- hold the others.
    DROP INDEX tasks_due;
    CREATE INDEX tasks_due ON tasks(queue, priority, deadline, domain, id + failures * 1000)
        WHERE status = 'pending' AND not_before = 0 AND deaths < 3;

-- Schema 9
    -- Crawls follow links. The tasks of a crawl are its own, one for each request in every state,
    -- and have a role: start, index, listing, file, sitemap. Other tasks have none.
    ALTER TABLE tasks ADD COLUMN role TEXT;
    ALTER TABLE tasks ADD COLUMN depth INTEGER NOT NULL DEFAULT 0; -- links between a start and it
    ALTER TABLE tasks ADD COLUMN hops INTEGER NOT NULL DEFAULT 0;  -- redirects that led to it
    ALTER TABLE tasks ADD COLUMN parent INTEGER;     -- the task on whose page its link was
    ALTER TABLE tasks ADD COLUMN method TEXT NOT NULL DEFAULT 'GET'; -- GET, FORM, SITEMAP, LINKS
    ALTER TABLE tasks ADD COLUMN body TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN modified_at REAL;   -- when its page last changed, by a sitemap
    ALTER TABLE tasks ADD COLUMN list_crc32 INTEGER; -- of the links on the list's page before it
    DROP INDEX tasks_by_url;
    CREATE UNIQUE INDEX tasks_by_url ON tasks(url_key, parcel_id, is_open,
        CASE WHEN source = 'gateway' THEN external_id WHEN role NOT NULL THEN task_id ELSE '' END);
    CREATE UNIQUE INDEX tasks_of_crawl ON tasks(job_id, url_key, method, body)
        WHERE role NOT NULL AND source <> 'bundle'; -- a bundle may have results of several crawls

    -- Of each crawl: the links that a guard left out, its sitemaps, and the pages of each site with
    -- a limit.
    CREATE TABLE crawl_counts (
        job_id  INTEGER NOT NULL,
        kind    TEXT NOT NULL,                       -- guard, role, site
        name    TEXT NOT NULL,
        count   INTEGER NOT NULL,
        example TEXT,                                -- the first link that was left out
        PRIMARY KEY (job_id, kind, name)
    ) WITHOUT ROWID;

    -- Why a record is not valid, as a JSON list.
    ALTER TABLE results ADD COLUMN invalid TEXT;
    ALTER TABLE exports ADD COLUMN roles TEXT;       -- a JSON list: of tasks of these roles only

-- Schema 10
    -- The calls that begin crawls of sites: of scrape_site_task, of an orchestrator, of a schedule.
    -- A call that comes again, whatever was killed in between, finds its job here.
    CREATE TABLE site_calls (
        call_id  TEXT PRIMARY KEY,
        job_id   INTEGER NOT NULL,
        site     TEXT NOT NULL,
        group_id TEXT,                               -- of calls that were made together
        at       REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX site_calls_by_group ON site_calls(group_id) WHERE group_id NOT NULL;

    -- How far each entry of config/schedules.yaml is.
    CREATE TABLE schedules (
        name   TEXT PRIMARY KEY,
        rule   TEXT NOT NULL,                        -- when it runs; another rule begins anew
        period REAL NOT NULL,                        -- the last one that is not to run any more
        ran_at REAL,                                 -- when that one ran; null: before it was known
        problems TEXT                                -- why sites could not begin, as JSON
    ) WITHOUT ROWID;

    -- The queue is no part of what a crawl is known by: an urgent call continues the open one.
    UPDATE OR IGNORE jobs SET key = substr(key, 1, 70) WHERE key GLOB 'crawl:*:*';

-- Schema 11
    -- Results in the order of their commits, by one number that never comes again: what follows
    -- them continues behind the last one that it has. A record that is replaced gets a new number.
    ALTER TABLE results ADD COLUMN seq INTEGER;
    UPDATE results SET seq = n FROM (
        SELECT r.task AS task, row_number() OVER (ORDER BY o.created_at, r.task) AS n
        FROM results r LEFT JOIN outbox o ON o.task = r.task) AS numbered
    WHERE numbered.task = results.task;
    CREATE INDEX results_by_seq ON results(seq);
    ALTER TABLE exports ADD COLUMN site TEXT;        -- results of this site only

    -- Earlier records of results: a later parser has made another one of the same page. They come
    -- from nowhere else, nor does what people said about pairs: so both tables have row numbers, and
    -- a repair reads each of their pages by itself.
    CREATE TABLE record_versions (
        task           INTEGER NOT NULL,
        version        INTEGER NOT NULL,             -- from 1, the oldest
        record         TEXT NOT NULL,
        invalid        TEXT,
        parser         TEXT NOT NULL,
        parser_version TEXT NOT NULL,
        site           TEXT NOT NULL,
        site_version   TEXT NOT NULL,
        replaced_at    REAL NOT NULL,
        PRIMARY KEY (task, version)
    );

    -- Things that the key of a site identifies, whatever page and job they came from.
    CREATE TABLE listings (
        id          INTEGER PRIMARY KEY,
        site        TEXT NOT NULL,
        key         TEXT NOT NULL,
        url         TEXT NOT NULL,                   -- where it was seen last
        url_key     BLOB NOT NULL,
        record      TEXT NOT NULL,
        record_hash TEXT NOT NULL,                   -- of the fields that count as changes
        page_hash   TEXT NOT NULL,                   -- of the page's content
        price       REAL,                            -- the last one that it had
        currency    TEXT,
        first_seen  REAL NOT NULL,
        last_seen   REAL NOT NULL,                   -- on its page, or by its link in a crawl
        fetched_at  REAL NOT NULL,                   -- when its page was fetched last
        changed_at  REAL,                            -- null: never since it was first seen
        gone_at     REAL,
        sold_at     REAL,
        unchanged   INTEGER NOT NULL DEFAULT 0,      -- fetches in a row that changed nothing
        missed      INTEGER NOT NULL DEFAULT 0,      -- whole crawls in a row that did not see it
        task        INTEGER NOT NULL,                -- whose result it was seen in last
        job_id      INTEGER,                         -- that saw it last
        matched     INTEGER NOT NULL DEFAULT 0       -- 1: compared with other sites since it changed;
                                                     -- every reason to compare it again takes 1 away
    );
    CREATE UNIQUE INDEX listings_by_key ON listings(site, key);
    CREATE INDEX listings_by_url ON listings(url_key);
    CREATE INDEX listings_to_match ON listings(id) WHERE matched < 1;
    CREATE INDEX listings_by_task ON listings(task);
    CREATE INDEX listings_by_state ON listings(site, iif(sold_at IS NOT NULL, 'sold',
        iif(gone_at IS NOT NULL, 'gone', 'active')));
    CREATE INDEX listings_missed ON listings(site) WHERE missed > 0 AND gone_at IS NULL;

    -- Other URLs that led to a listing, by redirects or in earlier crawls.
    CREATE TABLE listing_urls (
        url_key BLOB NOT NULL,
        listing INTEGER NOT NULL,
        PRIMARY KEY (url_key, listing)
    ) WITHOUT ROWID;
    CREATE INDEX listing_urls_by_listing ON listing_urls(listing);

    -- Pages that showed the key of a listing with another record than its own page, in one crawl.
    CREATE TABLE listing_conflicts (
        listing     INTEGER NOT NULL,
        url_key     BLOB NOT NULL,                   -- of the page's request, with the body of a form
        body        TEXT NOT NULL,
        url         TEXT NOT NULL,
        record_hash TEXT NOT NULL,
        job_id      INTEGER NOT NULL,                -- the last crawl in which that was so
        PRIMARY KEY (listing, url_key, body)
    ) WITHOUT ROWID;
    CREATE INDEX listing_conflicts_by_job ON listing_conflicts(job_id);

    CREATE TABLE listing_changes (
        id      INTEGER PRIMARY KEY,
        listing INTEGER NOT NULL,
        at      REAL NOT NULL,
        kind    TEXT NOT NULL,                       -- new, changed, gone, back, sold, corrected
        fields  TEXT,                                -- JSON: the old and the new value of each
        task    INTEGER,                             -- whose page showed it
        job_id  INTEGER                              -- without a page: the crawl that it missed
    );
    CREATE INDEX listing_changes_by_listing ON listing_changes(listing);
    CREATE INDEX listing_changes_by_time ON listing_changes(at);

    -- Each change of a price; a first price is none.
    CREATE TABLE price_history (
        id                INTEGER PRIMARY KEY,
        listing           INTEGER NOT NULL,
        at                REAL NOT NULL,
        price             REAL NOT NULL,
        currency          TEXT,
        previous_price    REAL NOT NULL,
        previous_currency TEXT,
        task              INTEGER NOT NULL
    );
    CREATE INDEX price_history_by_listing ON price_history(listing);

    -- What a person noted at a visit of the place.
    CREATE TABLE viewings (
        id      INTEGER PRIMARY KEY,
        listing INTEGER NOT NULL,
        at      REAL NOT NULL,
        note    TEXT NOT NULL
    );
    CREATE INDEX viewings_by_listing ON viewings(listing);

    -- Two listings of different sites that may be the same thing; `a` is the lower number.
    CREATE TABLE listing_pairs (
        a             INTEGER NOT NULL,
        b             INTEGER NOT NULL,
        confidence    REAL NOT NULL,                 -- 0 to 1
        reasons       TEXT NOT NULL,                 -- JSON
        discrepancies TEXT NOT NULL,                 -- JSON
        matched_at    REAL NOT NULL,
        decision      TEXT,                          -- same, different: what a person said
        decided_at    REAL,
        PRIMARY KEY (a, b)
    );
    CREATE INDEX listing_pairs_by_b ON listing_pairs(b);

    -- Listings that share a block are compared with each other, and no others are.
    CREATE TABLE listing_blocks (
        block   INTEGER NOT NULL,                    -- a hash of what its listings have in common
        listing INTEGER NOT NULL,
        PRIMARY KEY (block, listing)
    ) WITHOUT ROWID;
    CREATE INDEX listing_blocks_by_listing ON listing_blocks(listing);

    -- What stored images look like, once for each content.
    CREATE TABLE image_looks (
        sha256 TEXT PRIMARY KEY,
        dhash  TEXT                                  -- 16 hex digits; null: no usable image
    ) WITHOUT ROWID;

    -- The images and documents that a record names, each a task of the same job.
    CREATE TABLE result_files (
        task     INTEGER NOT NULL,                   -- whose record names it
        position INTEGER NOT NULL,
        field    TEXT NOT NULL,
        url      TEXT NOT NULL,
        url_key  BLOB NOT NULL,
        PRIMARY KEY (task, position)
    ) WITHOUT ROWID;
    CREATE INDEX result_files_by_url ON result_files(url_key, task);

-- Schema 12
    -- URLs that a program, or a client of the API, gave in one session. The tasks of a session are
    -- its own, one for each URL: what it sends along must not reach others by a shared page.
    CREATE TABLE batches (
        job_id     INTEGER PRIMARY KEY,
        client     TEXT NOT NULL,                    -- the name of a token; '': on this machine
        session_id TEXT NOT NULL,
        options    TEXT NOT NULL,                    -- JSON: how its results are shown
        horizon    INTEGER NOT NULL,                 -- the last event when it began
        direct     INTEGER NOT NULL DEFAULT 0        -- a process of its own was asked for
    );
    CREATE UNIQUE INDEX batches_by_session ON batches(client, session_id);
    -- Idempotency-Keys of the API, as hashes: the same key is the same call, with the same body.
    CREATE TABLE batch_keys (
        client TEXT NOT NULL,
        key    TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        body   TEXT NOT NULL,                        -- hash of what was asked for
        PRIMARY KEY (client, key)
    ) WITHOUT ROWID;
    CREATE INDEX batch_keys_of_job ON batch_keys(job_id);
    -- Who is told of a session. The address and the secret are in a file of sessions/.
    CREATE TABLE webhooks (
        job_id     INTEGER PRIMARY KEY,
        events     TEXT NOT NULL,                    -- JSON: what is told
        cursor     INTEGER NOT NULL DEFAULT 0,       -- the number of the last result that was told
        told_at    REAL,                             -- the end of the session that was told
        failures   INTEGER NOT NULL DEFAULT 0,       -- in a row
        not_before REAL NOT NULL DEFAULT 0,
        given_up   REAL,
        problem    TEXT
    );
    DROP INDEX tasks_by_url;
    CREATE UNIQUE INDEX tasks_by_url ON tasks(url_key, parcel_id, is_open,
        CASE WHEN source = 'gateway' THEN external_id WHEN source = 'batch' THEN job_id
             WHEN role NOT NULL THEN task_id ELSE '' END);

-- Schema 13
    -- What a task needs to be fetched: http, browser. Workers claim tasks of what they can do.
    ALTER TABLE tasks ADD COLUMN needs TEXT NOT NULL DEFAULT 'http';
    DROP INDEX tasks_due;
    CREATE INDEX tasks_due ON tasks(queue, needs, priority, deadline, domain, id + failures * 1000)
        WHERE status = 'pending' AND not_before = 0 AND deaths < 3;
    DROP INDEX tasks_suspected;
    CREATE INDEX tasks_suspected ON tasks(queue, needs, priority, deadline, id)
        WHERE status = 'pending' AND not_before = 0 AND deaths >= 3;
    -- Pages that need a browser, as learned by fetcher auto: a domain, and a pattern of paths.
    CREATE TABLE browser_pages (
        domain       TEXT NOT NULL,
        pattern      TEXT NOT NULL,                  -- a star for each part of the path with a digit
        site         TEXT NOT NULL,
        site_version TEXT NOT NULL,                  -- another version of its file forgets it
        is_needed    INTEGER NOT NULL,               -- 0: some of its pages are whole by HTTP
        task         INTEGER NOT NULL,               -- whose page showed it
        learned_at   REAL NOT NULL,
        PRIMARY KEY (domain, pattern)
    ) WITHOUT ROWID;
    -- What a browser has made of the page, a screenshot or a PDF, as JSON: its sha256, type, size and
    -- place in raw/. Null: a file that a record names.
    ALTER TABLE result_files ADD COLUMN capture TEXT;

/* The guest agent: the first process of a microVM, and all that its owner talks to.
 *
 * Born as init from the initial RAM disk. It loads the modules listed there, then forks itself into
 * namespaces of its own (so that kernel threads and the RAM disk are out of sight) and answers
 * frames on the one virtio-serial port (or a vsock): `frames.py` says what they hold. Steps build
 * the root; commands run in a control group each, as a user without rights, under a system-call
 * filter, and how they ended is told from waitpid. When the agent ends the machine resets, which
 * ends QEMU.
 *
 * One thread, one poll loop; nothing but small writes to files in memory may block it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/random.h>
#include <linux/seccomp.h>
#include <linux/vm_sockets.h>
#include <limits.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEP = 1, START, EXEC, INPUT, KILL, READ, WRITE, FREEZE, THAW, LISTEN, WINDOW,
       ATTACH, ASK, WALK };
enum { HELLO = 64, DONE, OUT, ERR, EXIT, CREDIT, DATA, ACCEPT, OUT_TAIL, ERR_TAIL, ANSWER };
enum { AT_FORK = 1, AT_DROP, AT_CHDIR, AT_EXEC };
enum { TIMED_OUT = 1, UNKILLABLE = 2 };
enum { COMMAND, READING, WRITING, LISTENING, RELAY };

#define CHUNK 65536
#define MAX_FRAME (16u << 20)
#define MAX_QUEUE (1u << 20)
#define MAX_TAIL (1u << 20)
#define KILL_NS 5000000000ll
#define PORT_NS 60000000000ll
#define MAX_LIMITS 16
#define HALF_TURN 16384
#define MAX_DEPTH 100

struct frame { uint32_t size, id; uint8_t kind; } __attribute__((packed));
struct ending {
    int32_t status, error;
    uint8_t where, flags;
    uint64_t cpu_us;
    uint32_t ooms, refused;
} __attribute__((packed));
struct buffer { char *data; size_t at, size, room; };
/* The end of an output that is longer than may be told: its last bytes, and how many there were. */
struct tail { char *data; size_t most; uint64_t total; };

/* Tells what was born before it from what was born after it; `Moment` in kernel.py says how. */
struct moment { unsigned long long before, after; pid_t last; };

/* Whatever has an id: a running command, a file on its way, a listening or a connected socket. */
struct item {
    struct item *next;
    int kind;
    uint32_t id;
    int in, out, err;         /* a file or socket is `out`, and `in` when it is written to */
    struct buffer pending;    /* for `in` */
    int input_ended;
    uint64_t most, left[2];   /* how much of stdout and stderr may be told, still; a relay: window */
    struct tail tail[2];
    pid_t pid;
    int group, exited, killed;
    int64_t deadline, dying_since;
    struct ending ending;
    int words, answers, script; /* of a session's process; else -1 */
    struct moment asked;
};

static int port = -1, vsock = -1, groups = -1, layer = -1, children = -1, frozen;
static struct buffer queue, inbox;
static struct item *items;
static uint32_t next_accepted = 0x80000000u;
static struct sock_fprog filter;
static struct { int kind; struct rlimit value; } limits[MAX_LIMITS];
static int limit_count;

static void die(const char *what)
{
    fprintf(stderr, "agent: %s: %s\n", what, strerror(errno));
    fflush(stderr);
    _exit(1);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void append(struct buffer *b, const void *data, size_t size)
{
    if (b->at && b->at == b->size)
        b->at = b->size = 0;
    if (b->size + size > b->room) {
        memmove(b->data, b->data + b->at, b->size - b->at);
        b->size -= b->at;
        b->at = 0;
    }
    if (b->size + size > b->room) {
        b->room = (b->size + size) * 2;
        b->data = realloc(b->data, b->room);
        if (!b->data)
            die("memory");
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static size_t held(const struct buffer *b) { return b->size - b->at; }

static void tell(int kind, uint32_t id, const void *body, size_t size)
{
    struct frame head = {size, id, kind};
    append(&queue, &head, sizeof head);
    append(&queue, body, size);
}

static void done(uint32_t id, int error)
{
    int32_t code = error;
    tell(DONE, id, &code, sizeof code);
}

static void shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int write_at(int folder, const char *path, const char *text, size_t size)
{
    int fd = openat(folder, path, O_WRONLY | O_CLOEXEC | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        return -1;
    while (size) {
        ssize_t n = write(fd, text, size);
        if (n < 0) {
            int error = errno;
            close(fd);
            errno = error;
            return -1;
        }
        text += n;
        size -= n;
    }
    return close(fd);
}

/* --- items ------------------------------------------------------------------------------------ */

static struct item *find(uint32_t id)
{
    struct item *i = items;
    while (i && i->id != id)
        i = i->next;
    return i;
}

static struct item *add(int kind, uint32_t id)
{
    struct item *i = calloc(1, sizeof *i);
    if (!i)
        die("memory");
    i->kind = kind;
    i->id = id;
    i->in = i->out = i->err = i->group = i->words = i->answers = i->script = -1;
    i->next = items;
    return items = i;
}

static void drop(struct item *i)
{
    struct item **at = &items;
    while (*at != i)
        at = &(*at)->next;
    *at = i->next;
    if (i->in >= 0 && i->in != i->out)
        close(i->in);
    shut(&i->out);
    shut(&i->err);
    shut(&i->group);
    shut(&i->words);
    shut(&i->answers);
    shut(&i->script);
    free(i->pending.data);
    free(i->tail[0].data);
    free(i->tail[1].data);
    free(i);
}

static void keep_tail(struct tail *t, const char *data, size_t size)
{
    if (!t->data && !(t->data = malloc(t->most)))
        die("memory");
    for (size_t n; size; data += n, size -= n) {
        size_t at = t->total % t->most;
        n = size < t->most - at ? size : t->most - at;
        memcpy(t->data + at, data, n);
        t->total += n;
    }
}

/* How many bytes were not told before, and the last of them. */
static void tell_tail(int kind, uint32_t id, const struct tail *t)
{
    static char body[sizeof t->total + MAX_TAIL];
    size_t size = t->total < t->most ? t->total : t->most;
    size_t at = size == t->most ? t->total % t->most : 0;
    memcpy(body, &t->total, sizeof t->total);
    memcpy(body + sizeof t->total, t->data + at, size - at);
    memcpy(body + sizeof t->total + size - at, t->data, at);
    tell(kind, id, body, sizeof t->total + size);
}

/* --- steps: what builds the root and sets the limits ------------------------------------------ */

static int loopback(void)
{
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    int result = fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &request);
    shut(&fd);
    return result;
}

static int enter(const char *root)
{
    groups = open("/groups/box", O_PATH | O_DIRECTORY | O_CLOEXEC);
    layer = open("/disk/upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (groups < 0 || layer < 0 || chdir(root) || mount(root, "/", NULL, MS_MOVE, NULL) || chroot("."))
        return -1;
    return chdir("/");
}

static long number(const char *text) { return strtol(text, NULL, 0); }

static int step(char **word, const uint32_t *size, int count)
{
    const char *name = word[0];
    if (!strcmp(name, "mount") && count == 6)
        return mount(word[1], word[2], word[3], number(word[4]), word[5]);
    if (!strcmp(name, "mkdir") && count == 4) {
        if (mkdir(word[1], number(word[2])) && errno != EEXIST)
            return -1;
        return chmod(word[1], number(word[2])) || lchown(word[1], number(word[3]), number(word[3]));
    }
    if (!strcmp(name, "folder") && count == 4) {
        if (mkdir(word[1], number(word[2])))
            return errno == EEXIST ? 0 : -1;
        return lchown(word[1], number(word[3]), number(word[3]));
    }
    if (!strcmp(name, "link") && count == 3)
        return symlink(word[1], word[2]) && errno != EEXIST ? -1 : 0;
    if (!strcmp(name, "write") && count == 3)
        return write_at(AT_FDCWD, word[1], word[2], size[2]);
    if (!strcmp(name, "node") && count == 4) {
        if (mknod(word[1], S_IFCHR | 0666, makedev(number(word[2]), number(word[3]))))
            return -1;
        return chmod(word[1], 0666);
    }
    if (!strcmp(name, "unlink") && count == 2)
        return unlink(word[1]);
    if (!strcmp(name, "hostname") && count == 2)
        return sethostname(word[1], size[1]);
    if (!strcmp(name, "loopback") && count == 1)
        return loopback();
    if (!strcmp(name, "enter") && count == 2)
        return enter(word[1]);
    if (!strcmp(name, "limit") && count == 4 && limit_count < MAX_LIMITS) {
        limits[limit_count].kind = number(word[1]);
        limits[limit_count].value.rlim_cur = strtoull(word[2], NULL, 0);
        limits[limit_count++].value.rlim_max = strtoull(word[3], NULL, 0);
        return 0;
    }
    if (!strcmp(name, "filter") && count == 2) {
        filter.len = size[1] / sizeof(struct sock_filter);
        filter.filter = malloc(size[1]);
        memcpy(filter.filter, word[1], size[1]);
        return 0;
    }
    errno = EINVAL;
    return -1;
}

/* --- commands --------------------------------------------------------------------------------- */

static void become(char **word, int argc, int failed)
{
    /* word: uid, gid, folder, argv..., NULL, environment..., NULL */
    struct { uint32_t error, where; } report = {0, AT_DROP};
    struct { uint32_t version; int pid; } head = {0x20080522, 0};
    uint32_t none[6] = {0};
    uid_t uid = number(word[0]), gid = number(word[1]);
    sigset_t nothing;
    sigemptyset(&nothing);
    for (int n = 1; n < NSIG; n++)
        signal(n, SIG_DFL);
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    umask(022);
    for (int n = 0; n < limit_count; n++)
        if (setrlimit(limits[n].kind, &limits[n].value))
            goto fail;
    for (int n = 0; n < 64; n++)
        if (prctl(PR_CAPBSET_DROP, n) && errno != EINVAL)
            goto fail;
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
        goto fail;
    if (syscall(SYS_capset, &head, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        goto fail;
    report.where = AT_CHDIR;
    if (chdir(word[2]))
        goto fail;
    report.where = AT_DROP;
    if (filter.len && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        goto fail;
    report.where = AT_EXEC;
    environ = word + 3 + argc + 1;
    execvp(word[3], word + 3);
fail:
    report.error = errno;
    if (write(failed, &report, sizeof report) < 0)
        _exit(126);
    _exit(127);
}

static void enter_group(int group)
{
    int fd = openat(group, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1)
        _exit(126);
}

/* A session's process gets further descriptors: 4 words, 5 its answers, 6 the script. */
static int attach(struct item *i, int theirs[3])
{
    int words[2], answers[2];
    char path[64];
    if (pipe2(words, O_CLOEXEC))
        return -1;
    i->words = words[1], theirs[0] = words[0];
    if (pipe2(answers, O_CLOEXEC))
        return -1;
    i->answers = answers[0], theirs[1] = answers[1];
    fcntl(i->words, F_SETFL, O_NONBLOCK);
    fcntl(i->answers, F_SETFL, O_NONBLOCK);
    i->script = memfd_create("script", MFD_CLOEXEC);
    if (i->script < 0 || fchmod(i->script, 0444))
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", i->script);
    theirs[2] = open(path, O_RDONLY | O_CLOEXEC);
    return theirs[2] < 0 ? -1 : 0;
}

static int run(struct item *i, char **word, int argc, int attached)
{
    int theirs[3] = {-1, -1, -1};
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, failed[2] = {-1, -1};
    char name[16];
    snprintf(name, sizeof name, "%u", i->id);
    if (mkdirat(groups, name, 0755))
        return -1;
    i->group = openat(groups, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (i->group < 0 || pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)
        || pipe2(failed, O_CLOEXEC) || (attached && attach(i, theirs)))
        return -1;
    i->pid = fork();
    if (i->pid == 0) {
        setsid();
        enter_group(i->group);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        int told = fcntl(failed[1], F_DUPFD_CLOEXEC, 100);
        for (int n = 0; n < 3; n++)
            theirs[n] = theirs[n] < 0 ? -1 : fcntl(theirs[n], F_DUPFD_CLOEXEC, 100);
        for (int n = 0; n < 3; n++)
            if (theirs[n] >= 0)
                dup2(theirs[n], 4 + n);
        become(word, argc, told);
    }
    int error = errno;
    for (int n = 0; n < 3; n++)
        shut(&theirs[n]);
    close(in[0]), close(out[1]), close(err[1]), close(failed[1]);
    i->in = in[1], i->out = out[0], i->err = err[0];
    fcntl(i->in, F_SETFL, O_NONBLOCK);
    fcntl(i->out, F_SETFL, O_NONBLOCK);
    fcntl(i->err, F_SETFL, O_NONBLOCK);
    uint32_t report[2] = {0, 0};
    /* The child execs or reports within a few system calls. */
    if (i->pid > 0 && read(failed[0], report, sizeof report) == sizeof report)
        i->ending.error = report[0], i->ending.where = report[1];
    close(failed[0]);
    errno = error;
    return i->pid < 0 ? -1 : 0;
}

static void start_command(uint32_t id, char **word, int count, int attached)
{
    /* limit in ms (0: none), most output, argc, uid, gid, folder, argv..., environment... */
    if (count < 7) {
        done(id, EINVAL);
        return;
    }
    struct item *i = add(COMMAND, id);
    long limit_ms = number(word[0]);
    int argc = number(word[2]), given = count - 3;
    i->most = i->left[0] = i->left[1] = strtoull(word[1], NULL, 0);
    size_t most = i->left[0] / 2 + 1;
    i->tail[0].most = i->tail[1].most = most < MAX_TAIL ? most : MAX_TAIL;
    char **words = calloc(given + 2, sizeof *words);
    for (int at = 0; at < given; at++)
        words[at + (at >= 3 + argc)] = word[3 + at];
    if (run(i, words, argc, attached)) {
        i->ending.error = errno;
        i->ending.where = AT_FORK;
        i->exited = 1;
    }
    free(words);
    i->deadline = limit_ms ? now() + limit_ms * 1000000ll : 0;
}

static void kill_group(struct item *i)
{
    if (i->group >= 0)
        write_at(i->group, "cgroup.kill", "1", 1);
    if (!i->dying_since)
        i->dying_since = now();
}

static uint64_t counter_at(int group, const char *file, const char *key)
{
    char text[4096], *line;
    int fd = openat(group, file, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    shut(&fd);
    text[size > 0 ? size : 0] = 0;
    size_t length = strlen(key);
    for (char *rest = text; (line = strsep(&rest, "\n"));)
        if (!strncmp(line, key, length) && line[length] == ' ')
            return strtoull(line + length, NULL, 10);
    return 0;
}

static uint64_t counter(struct item *i, const char *file, const char *key)
{
    return counter_at(i->group, file, key);
}

/* A command is over when its first process was waited for, the rest is gone and all output told. */
static int finish(struct item *i)
{
    char name[16];
    if (!i->dying_since)
        kill_group(i);
    int late = now() - i->dying_since > KILL_NS;
    if ((i->out >= 0 || i->err >= 0) && !late)
        return 0;
    if (i->group >= 0) {
        if (counter(i, "cgroup.events", "populated") && !late)
            return 0;
        i->ending.cpu_us = counter(i, "cpu.stat", "usage_usec");
        i->ending.ooms = counter(i, "memory.events", "oom_kill");
        i->ending.refused = counter(i, "pids.events", "max");
    }
    snprintf(name, sizeof name, "%u", i->id);
    if (unlinkat(groups, name, AT_REMOVEDIR) && errno == EBUSY) {
        if (!late)
            return 0;
        i->ending.flags |= UNKILLABLE;
    }
    for (int which = 0; which < 2; which++)
        if (i->tail[which].total)
            tell_tail(which ? ERR_TAIL : OUT_TAIL, i->id, &i->tail[which]);
    tell(EXIT, i->id, &i->ending, sizeof i->ending);
    drop(i);
    return 1;
}

static void reap(void)
{
    struct signalfd_siginfo ignored[16];
    while (read(children, ignored, sizeof ignored) > 0)
        ;
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return;
        for (struct item *i = items; i; i = i->next)
            if (i->kind == COMMAND && i->pid == pid && !i->exited) {
                i->exited = 1;
                i->ending.status = status;
            }
    }
}

/* --- sessions: long-lived commands that are asked for one thing after the other ----------------- */

static unsigned long long ticks_now(void)
{
    struct timespec t;
    unsigned long long hz = sysconf(_SC_CLK_TCK);
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * hz + t.tv_nsec * hz / 1000000000u;
}

/* Notes the moment, puts the script there and says so. */
static void ask(struct item *i, char **word, const uint32_t *size, int count)
{
    if (count != 2 || i->words < 0)
        return;
    i->asked.before = ticks_now();
    i->asked.last = vfork();
    if (i->asked.last == 0)
        _exit(0);
    i->asked.last = i->asked.last < 0 ? 0 : i->asked.last;
    i->asked.after = ticks_now();
    const char *at = word[0];
    size_t left = size[0];
    (void)!ftruncate(i->script, 0);
    for (ssize_t n; left && (n = pwrite(i->script, at, left, at - word[0])) > 0; left -= n)
        at += n;
    if (!left && write(i->words, word[1], size[1]) < 0)
        return; /* it is gone, which its answers say */
}

static int born_since(const struct moment *m, pid_t pid)
{
    char path[64], line[1024];
    unsigned long long started;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    shut(&fd);
    line[size > 0 ? size : 0] = 0;
    char *after = strrchr(line, ')');
    if (!after || sscanf(after + 1, " %*c %*d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                                    " %*s %*s %*s %*s %llu", &started) != 1)
        return 0;
    if (started < m->before || started > m->after)
        return started > m->after;
    int ahead = pid - m->last;
    return (ahead > 0 && ahead < HALF_TURN) || ahead < -HALF_TURN;
}

/* Signals a session's process and kills what was born in its group since it was last asked; while
 * that is found out, nothing there moves. */
static void interrupt(struct item *i, pid_t pid, int signal)
{
    write_at(i->group, "cgroup.freeze", "1", 1);
    for (int turn = 0; turn < 2000 && !counter(i, "cgroup.events", "frozen"); turn++)
        usleep(1000);
    int fd = openat(i->group, "cgroup.procs", O_RDONLY | O_CLOEXEC), member, mine = 0;
    FILE *list = fd < 0 ? NULL : fdopen(fd, "r");
    while (list && fscanf(list, "%d", &member) == 1) {
        mine |= member == pid;
        if (member > 0 && member != pid && born_since(&i->asked, member))
            kill(member, SIGKILL);
    }
    if (list)
        fclose(list);
    if (mine)
        kill(pid, signal);
    write_at(i->group, "cgroup.freeze", "0", 1);
}

/* --- files ------------------------------------------------------------------------------------ */

/* Opens below the root; links of /proc are never followed, others only where they may be. */
static int open_path(const char *path, int flags, int mode, int links)
{
    struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .mode = flags & O_CREAT ? mode & 07777 : 0,
        .resolve = RESOLVE_NO_MAGICLINKS | (links ? 0 : RESOLVE_NO_SYMLINKS),
    };
    return syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

static int make_folders(char *path, uid_t uid, gid_t gid, int links)
{
    for (char *at = strchr(path + 1, '/'), *last = path; at; last = at, at = strchr(at + 1, '/')) {
        char name[256];
        *last = 0;
        int above = open_path(last == path ? "/" : path, O_PATH | O_DIRECTORY, 0, links);
        int error = errno;
        *last = '/';
        if (above < 0) {
            errno = error;
            return -1;
        }
        snprintf(name, sizeof name, "%.*s", (int)(at - last - 1), last + 1);
        if (name[0] && !mkdirat(above, name, 0755))
            (void)!fchownat(above, name, uid, gid, AT_SYMLINK_NOFOLLOW);
        close(above);
    }
    return 0;
}

/* A regular, stored file below the root; links of /proc are never followed. */
static int open_stored(const char *path, int flags, int mode, int links, struct stat *state)
{
    struct statfs system;
    int fd = open_path(path, flags | O_NONBLOCK | O_NOCTTY, mode, links);
    if (fd < 0)
        return -1;
    int error = 0;
    if (fstat(fd, state) || fstatfs(fd, &system))
        error = errno;
    else if (S_ISDIR(state->st_mode))
        error = EISDIR;
    else if (!S_ISREG(state->st_mode))
        error = EINVAL;
    else if (system.f_type == 0x9fa0)
        error = EACCES;
    if (!error)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

static void start_read(uint32_t id, char **word, int count)
{
    struct stat state;
    if (count != 3) {
        done(id, EINVAL);
        return;
    }
    int fd = open_stored(word[0], O_RDONLY, 0, 1, &state);
    uint64_t most = strtoull(word[1], NULL, 0);
    if (fd < 0) {
        done(id, errno);
        return;
    }
    if (number(word[2]))
        unlink(word[0]);
    if ((uint64_t)state.st_size > most) {
        close(fd);
        done(id, EFBIG);
        return;
    }
    struct item *i = add(READING, id);
    i->out = fd;
    i->left[0] = most;
}

/* --- folders: walked by a child, so that a large one keeps nobody waiting --------------------- */

struct walk { FILE *out; uint32_t left; int contents; dev_t device; };
struct entry {
    uint32_t kind, mode, uid, gid, path, target;
    uint64_t size;
} __attribute__((packed));

static int put_content(struct walk *w, int folder, const char *name, uint64_t size)
{
    static char data[CHUNK];
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = 0;
    while (fd >= 0 && size && (n = read(fd, data, size < CHUNK ? size : CHUNK)) > 0) {
        fwrite(data, 1, n, w->out);
        size -= n;
    }
    int error = errno;
    shut(&fd);
    errno = n < 0 ? error : EIO;
    return size ? -1 : 0;
}

/* Everything below an open folder in the order of names; links are named, not followed. */
static int walk(struct walk *w, int folder, char *path, size_t above, int depth)
{
    struct dirent **names;
    int count = scandirat(folder, ".", &names, NULL, alphasort), result = count < 0 ? -1 : 0;
    for (int n = 0; n < count; n++) {
        const char *name = names[n]->d_name;
        struct stat state;
        char target[4097] = "";
        size_t end = above + strlen(name);
        if (result || !strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        errno = end + 2 > PATH_MAX ? ENAMETOOLONG : w->left-- ? 0 : EFBIG;
        if (errno || fstatat(folder, name, &state, AT_SYMLINK_NOFOLLOW)
            || (S_ISLNK(state.st_mode) && readlinkat(folder, name, target, sizeof target - 1) < 0)) {
            result = -1;
            continue;
        }
        if (w->contents && state.st_dev != w->device)
            continue;
        memcpy(path + above, name, end - above + 1);
        int regular = S_ISREG(state.st_mode);
        struct entry head = {state.st_mode & S_IFMT, state.st_mode & 07777, state.st_uid,
                             state.st_gid, end, strlen(target), regular ? state.st_size : 0};
        fwrite(&head, sizeof head, 1, w->out);
        fwrite(path, 1, end, w->out);
        fwrite(target, 1, head.target, w->out);
        if (regular && w->contents)
            result = put_content(w, folder, name, state.st_size);
        if (!S_ISDIR(state.st_mode) || result)
            continue;
        errno = ENAMETOOLONG;
        int fd = depth < MAX_DEPTH
                     ? openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        path[end] = '/';
        result = fd < 0 ? -1 : walk(w, fd, path, end + 1, depth + 1);
        int error = errno;
        shut(&fd);
        errno = error;
    }
    int error = errno;
    for (int n = 0; n < count; n++)
        free(names[n]);
    if (count >= 0)
        free(names);
    errno = error;
    return result;
}

/* Its entries are data; one of kind 0 says with which errno it ended. */
static void start_walk(uint32_t id, char **word, int count)
{
    int pair[2];
    static char path[PATH_MAX + 1];
    if (count != 5 || pipe2(pair, O_CLOEXEC)) {
        done(id, count != 5 ? EINVAL : errno);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct walk w = {fdopen(pair[1], "w"), number(word[1]), number(word[4]), 0};
        struct stat state;
        if (!w.contents)
            setfsgid(number(word[3])), setfsuid(number(word[2]));
        int fd = w.contents ? openat(layer, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                            : open_path(word[0], O_RDONLY | O_DIRECTORY, 0, 1);
        int failed = fd < 0 || fstat(fd, &state);
        w.device = failed ? 0 : state.st_dev;
        failed = failed || walk(&w, fd, path, 0, 0);
        struct entry last = {.mode = failed ? errno : 0};
        fwrite(&last, sizeof last, 1, w.out);
        fclose(w.out);
        _exit(0);
    }
    int error = errno;
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        done(id, error);
        return;
    }
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    struct item *i = add(READING, id);
    i->out = pair[0];
    i->left[0] = UINT64_MAX;
}

static void start_write(uint32_t id, char **word, int count)
{
    struct stat state;
    struct item *i = add(WRITING, id);
    int linked = 0;
    uid_t uid = count == 4 ? number(word[2]) : 0;
    gid_t gid = count == 4 ? number(word[3]) : 0;
    if (count != 4) {
        i->ending.error = EINVAL;
        return;
    }
    /* A path that leads through a link is the candidate's word: it gets the candidate's rights. */
    for (int links = 0; links < 2 && i->out < 0; links++) {
        if (links && errno != ELOOP)
            break;
        if (links)
            setfsgid(gid), setfsuid(uid);
        if (!make_folders(word[0], uid, gid, links))
            i->out = open_stored(word[0], O_WRONLY | O_CREAT, number(word[1]), links, &state);
        int error = errno;
        setfsuid(0), setfsgid(0);
        errno = error;
        linked = links;
    }
    if (linked && i->out >= 0 && state.st_uid != uid) {
        i->ending.error = EACCES;
        return;
    }
    if (i->out < 0 || ftruncate(i->out, 0) || fchown(i->out, uid, gid)
        || fchmod(i->out, number(word[1]) & 07777))
        i->ending.error = errno;
}

static void take_write(struct item *i, const char *data, size_t size)
{
    if (!size) {
        done(i->id, i->ending.error);
        drop(i);
        return;
    }
    while (size && !i->ending.error) {
        ssize_t n = write(i->out, data, size);
        if (n < 0)
            i->ending.error = errno;
        else
            data += n, size -= n;
    }
}

/* --- relays: sockets inside that the owner serves --------------------------------------------- */

static void start_listening(uint32_t id, char **word, int count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    address.sin_port = htons(count == 1 ? number(word[0]) : 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one)
        || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64)) {
        done(id, errno);
        shut(&fd);
        return;
    }
    add(LISTENING, id)->out = fd;
    done(id, 0);
}

static void accept_one(struct item *listening)
{
    int fd = accept4(listening->out, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct item *i = add(RELAY, next_accepted++);
    next_accepted |= 0x80000000u;
    i->in = i->out = fd;
    i->left[0] = 4 * CHUNK;
    tell(ACCEPT, i->id, &listening->id, sizeof listening->id);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Sends on what a pipe, socket or file holds; what is over the limit is kept only at its end. */
static void forward(struct item *i, int *fd, int kind, int which)
{
    static char data[CHUNK];
    size_t most = sizeof data;
    if (i->kind == RELAY && i->left[0] < most)
        most = i->left[0];
    ssize_t size = read(*fd, data, most);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (i->kind == READING) {
        if (size > 0 && (uint64_t)size <= i->left[0]) {
            i->left[0] -= size;
            tell(DATA, i->id, data, size);
        } else {
            done(i->id, size < 0 ? errno : size ? EFBIG : 0);
            drop(i);
        }
        return;
    }
    if (size <= 0) {
        if (i->kind == RELAY) {
            tell(OUT, i->id, NULL, 0);
            i->out = -1;
            if (i->in < 0 || size < 0)
                drop(i);
        } else
            shut(fd);
        return;
    }
    size_t told = (uint64_t)size < i->left[which] ? (size_t)size : i->left[which];
    if (told < (size_t)size)
        keep_tail(&i->tail[which], data + told, size - told);
    i->left[which] -= told;
    if (told)
        tell(kind, i->id, data, told);
}

/* An answer of a session's process, after what it printed; then its output counts anew. */
static void forward_answer(struct item *i)
{
    static char data[CHUNK];
    ssize_t size = read(i->answers, data, sizeof data);
    if (size < 0 && (errno == EAGAIN || errno == EINTR || errno == EBADF))
        return;
    for (int which = 0; which < 2; which++) {
        int *fd = which ? &i->err : &i->out, waiting;
        for (int turn = 0; *fd >= 0 && turn < 64 && !ioctl(*fd, FIONREAD, &waiting) && waiting; turn++)
            forward(i, fd, which ? ERR : OUT, which);
        if (i->tail[which].total)
            tell_tail(which ? ERR_TAIL : OUT_TAIL, i->id, &i->tail[which]);
        i->tail[which].total = 0;
        i->left[which] = i->most;
    }
    tell(ANSWER, i->id, data, size > 0 ? size : 0);
    if (size <= 0)
        shut(&i->answers);
}

static void end_input(struct item *i)
{
    free(i->pending.data);
    i->pending = (struct buffer){0};
    if (i->kind == COMMAND) {
        shut(&i->in);
        return;
    }
    int fd = i->in;
    i->in = -1;
    if (i->out >= 0)
        shutdown(fd, SHUT_WR);
    else {
        close(fd);
        drop(i);
    }
}

static void feed(struct item *i)
{
    uint32_t taken = 0;
    while (held(&i->pending)) {
        ssize_t size = write(i->in, i->pending.data + i->pending.at, held(&i->pending));
        if (size < 0 && errno == EAGAIN)
            break;
        if (size < 0) {
            end_input(i);
            return;
        }
        i->pending.at += size;
        taken += size;
    }
    if (taken)
        tell(CREDIT, i->id, &taken, sizeof taken);
    if (i->input_ended && !held(&i->pending))
        end_input(i);
}

static void take_input(struct item *i, const char *data, size_t size)
{
    if (i->kind == WRITING)
        take_write(i, data, size);
    else if (i->in >= 0) {
        if (size)
            append(&i->pending, data, size);
        else
            i->input_ended = 1;
        feed(i);
    }
}

static void freeze(int on)
{
    frozen = on;
    write_at(groups, "cgroup.freeze", on ? "1" : "0", 1);
    for (int turn = 0; on && turn < 1000; turn++) {
        if (counter_at(groups, "cgroup.events", "frozen"))
            return;
        usleep(1000);
    }
}

static void look_after(struct item *i, int64_t at)
{
    if (i->kind != COMMAND || frozen)
        return;
    if (i->deadline && at >= i->deadline && !i->exited && !i->dying_since) {
        i->ending.flags |= TIMED_OUT;
        kill_group(i);
    }
    if (i->exited)
        finish(i);
}

static int running(void)
{
    struct item *i = items;
    while (i && i->kind != COMMAND)
        i = i->next;
    return i != NULL;
}

/* After a restore: what ran before belongs to someone else; nothing random may be shared. */
static int start(char **word, const uint32_t *size, int count)
{
    struct { int bits, size; char seed[64]; } entropy = {512, 64, {0}};
    if (count != 2 || size[0] != sizeof entropy.seed) {
        errno = EINVAL;
        return -1;
    }
    freeze(0);
    for (struct item *i = items, *next; i; i = next) {
        next = i->next;
        if (i->kind == COMMAND)
            kill_group(i);
        else
            drop(i);
    }
    for (int turn = 0; turn < 10000 && running(); turn++) {
        usleep(1000);
        reap();
        int64_t at = now();
        for (struct item *i = items, *next; i; i = next) {
            next = i->next;
            for (int which = 0; i->kind == COMMAND && which < 2; which++)
                shut(which ? &i->err : &i->out);
            look_after(i, at);
        }
    }
    memcpy(entropy.seed, word[0], sizeof entropy.seed);
    int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    int failed = fd < 0 || ioctl(fd, RNDADDENTROPY, &entropy) || ioctl(fd, RNDRESEEDCRNG);
    shut(&fd);
    int64_t us = strtoll(word[1], NULL, 10);
    struct timespec wall = {us / 1000000, us % 1000000 * 1000};
    return failed || clock_settime(CLOCK_REALTIME, &wall) ? -1 : 0;
}

static void kill_one(struct item *i, char **word, int count)
{
    /* nothing: the whole tree, or the connection; a pid and a signal: see interrupt */
    if (count == 2 && i->kind == COMMAND && i->group >= 0)
        interrupt(i, number(word[0]), number(word[1]));
    else if (i->kind == COMMAND)
        kill_group(i);
    else if (i->kind == RELAY || i->kind == LISTENING)
        drop(i);
}

static void handle(int kind, uint32_t id, char *body, uint32_t size)
{
    struct item *i = find(id);
    if (kind == INPUT) {
        if (i)
            take_input(i, body, size);
        return;
    }
    if (kind == WINDOW) {
        uint32_t more;
        memcpy(&more, body, sizeof more);
        if (i && i->kind == RELAY)
            i->left[0] += more;
        return;
    }
    /* A list of words: each its length, its bytes and a NUL. */
    int count = 0;
    for (uint32_t at = 0, n; at + 4 < size; at += 5 + n, count++)
        memcpy(&n, body + at, 4);
    char **word = calloc(count + 1, sizeof *word);
    uint32_t *sizes = calloc(count + 1, sizeof *sizes);
    for (uint32_t at = 0, n = 0; n < (uint32_t)count; at += 5 + sizes[n], n++) {
        memcpy(&sizes[n], body + at, 4);
        word[n] = body + at + 4;
    }
    switch (kind) {
    case STEP: done(id, count && !step(word, sizes, count) ? 0 : errno); break;
    case START: done(id, start(word, sizes, count) ? errno : 0); break;
    case EXEC: start_command(id, word, count, 0); break;
    case ATTACH: start_command(id, word, count, 1); break;
    case ASK: if (i) ask(i, word, sizes, count); break;
    case KILL: if (i) kill_one(i, word, count); break;
    case READ: start_read(id, word, count); break;
    case WRITE: start_write(id, word, count); break;
    case WALK: start_walk(id, word, count); break;
    case FREEZE: freeze(1); done(id, 0); break;
    case THAW: freeze(0); done(id, 0); break;
    case LISTEN: start_listening(id, word, count); break;
    default: done(id, ENOSYS);
    }
    free(word);
    free(sizes);
}

/* Nobody holds the other end: between a snapshot and its restore. What was half said is void. */
static void reconnect(void)
{
    if (vsock < 0) {
        usleep(1000);
        return;
    }
    close(port);
    inbox.at = inbox.size = queue.at = queue.size = 0;
    while ((port = accept4(vsock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
        usleep(1000);
}

static void take_frames(void)
{
    static char data[CHUNK];
    ssize_t size;
    while ((size = read(port, data, sizeof data)) > 0) {
        append(&inbox, data, size);
        struct frame head;
        while (held(&inbox) >= sizeof head) {
            memcpy(&head, inbox.data + inbox.at, sizeof head);
            if (head.size > MAX_FRAME)
                die("a frame is too long");
            if (held(&inbox) < sizeof head + head.size)
                break;
            handle(head.kind, head.id, inbox.data + inbox.at + sizeof head, head.size);
            inbox.at += sizeof head + head.size;
        }
    }
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
        reconnect();
}

static void send_queue(void)
{
    while (held(&queue)) {
        ssize_t size = write(port, queue.data + queue.at, held(&queue));
        if (size <= 0)
            return;
        queue.at += size;
    }
}

static int wait_ms(void)
{
    int64_t at = now(), wait = 1000;
    for (struct item *i = items; i && !frozen; i = i->next) {
        if (i->kind != COMMAND)
            continue;
        int64_t left = i->dying_since || i->exited ? 1 : wait;
        if (!i->dying_since && !i->exited && i->deadline)
            left = (i->deadline - at) / 1000000 + 1;
        if (left < wait)
            wait = left < 0 ? 0 : left;
    }
    return wait;
}

static int poll_once(void)
{
    static struct pollfd *list;
    static struct { uint32_t id; int which; } *owner;
    static int room;
    int count = 2, full = held(&queue) >= MAX_QUEUE, needed = 2;
    for (struct item *i = items; i; i = i->next)
        needed += 4;
    if (needed > room) {
        room = needed * 2;
        list = realloc(list, room * sizeof *list);
        owner = realloc(owner, room * sizeof *owner);
    }
    list[0] = (struct pollfd){port, POLLIN | (held(&queue) ? POLLOUT : 0), 0};
    list[1] = (struct pollfd){children, POLLIN, 0};
    for (struct item *i = items; i; i = i->next) {
        if (frozen && i->kind != READING)
            continue;
        int fds[4] = {i->out, i->err, held(&i->pending) ? i->in : -1, i->answers};
        if (full || i->kind == WRITING || (i->kind == RELAY && !i->left[0]))
            fds[0] = fds[1] = fds[3] = -1;
        for (int which = 0; which < 4; which++)
            if (fds[which] >= 0) {
                list[count] = (struct pollfd){fds[which], which == 2 ? POLLOUT : POLLIN, 0};
                owner[count].id = i->id;
                owner[count++].which = which;
            }
    }
    if (poll(list, count, wait_ms()) < 0 && errno != EINTR)
        die("poll");
    if (list[0].revents)
        take_frames();
    if (list[1].revents)
        reap();
    for (int at = 2; at < count; at++) {
        struct item *i = list[at].revents ? find(owner[at].id) : NULL;
        int which = owner[at].which;
        if (!i || (frozen && i->kind != READING))
            continue;
        if (which == 2)
            feed(i);
        else if (which == 3)
            forward_answer(i);
        else if (i->kind == LISTENING)
            accept_one(i);
        else if ((which ? i->err : i->out) >= 0)
            forward(i, which ? &i->err : &i->out, which ? ERR : OUT, which);
    }
    int64_t at = now();
    for (struct item *i = items, *next; i; i = next) {
        next = i->next;
        look_after(i, at);
    }
    send_queue();
    return 1;
}

/* --- birth ------------------------------------------------------------------------------------ */

static void load_modules(void)
{
    char name[256], path[300];
    FILE *list = fopen("/modules/order", "re");
    while (list && fscanf(list, "%255s", name) == 1) {
        snprintf(path, sizeof path, "/modules/%s", name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
            die(name);
        close(fd);
    }
    if (list)
        fclose(list);
}

/* Machines without a serial port (Firecracker) name a vsock port on the kernel's command line. */
static unsigned vsock_port(void)
{
    static char line[4096];
    int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    shut(&fd);
    line[size > 0 ? size : 0] = 0;
    const char *found = strstr(line, "quintain.vsock=");
    return found ? number(found + strlen("quintain.vsock=")) : 0;
}

static int accept_owner(unsigned number)
{
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_port = number};
    address.svm_cid = VMADDR_CID_ANY;
    vsock = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (vsock < 0 || bind(vsock, (struct sockaddr *)&address, sizeof address) || listen(vsock, 1))
        return -1;
    return accept4(vsock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static int open_port(void)
{
    for (int64_t began = now(); now() - began < PORT_NS; usleep(2000)) {
        DIR *folder = opendir("/dev");
        struct dirent *entry;
        char path[300];
        while (folder && (entry = readdir(folder)))
            if (!strncmp(entry->d_name, "vport", 5)) {
                snprintf(path, sizeof path, "/dev/%s", entry->d_name);
                closedir(folder);
                return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
            }
        if (folder)
            closedir(folder);
    }
    errno = ENODEV;
    return -1;
}

static int serve(void *nothing)
{
    (void)nothing;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &child, NULL))
        die("signals");
    children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        die("namespace");
    tell(HELLO, 0, "1", 1);
    while (poll_once())
        ;
    return 0;
}

int main(void)
{
    static char stack[1 << 20] __attribute__((aligned(16)));
    const char *folders[] = {"/dev", "/proc", "/groups", "/layers", "/box", "/disk"};
    for (size_t n = 0; n < sizeof folders / sizeof *folders; n++)
        mkdir(folders[n], 0755);
    if (mount("dev", "/dev", "devtmpfs", 0, "") && errno != EBUSY)
        die("/dev");
    if (mount("proc", "/proc", "proc", 0, "") || mount("groups", "/groups", "cgroup2", 0, ""))
        die("/proc and groups");
    const char *all = "+memory +pids +cpu";
    if (mkdir("/groups/box", 0755)
        || write_at(AT_FDCWD, "/groups/cgroup.subtree_control", all, strlen(all))
        || write_at(AT_FDCWD, "/groups/box/cgroup.subtree_control", all, strlen(all)))
        die("control groups");
    load_modules();
    unsigned number = vsock_port();
    port = number ? accept_owner(number) : open_port();
    if (port < 0)
        die("no port to the owner");
    int spaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET;
    pid_t pid = clone(serve, stack + sizeof stack, spaces | SIGCHLD, NULL);
    if (pid < 0)
        die("namespaces");
    close(port);
    shut(&vsock);
    while (wait(NULL) != pid)
        ;
    reboot(RB_AUTOBOOT);
    for (;;)
        pause();
}

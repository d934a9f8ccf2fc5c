/* The first process of a container: starts commands, tells how they ended, moves files.
 *
 * It speaks frames (see agent.py) on its stdin and stdout with the owner, and nothing else can: its
 * descriptors are closed in every child, it is not dumpable, and commands run as another user
 * without any capability. When its stdin ends (the owner is gone), it ends, and the container with
 * it. A command has a *minder* for parent, which is the reaper of everything that the command
 * starts: it waits, keeps the time, kills what is left, and reports.
 *
 * Static, no library but the C library, no file of the image is needed. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SETUP = 1, EXEC, INPUT, KILL, READ, WRITE, DATA, LIST };
enum { UP = 16, BROKEN, OUT, EXIT, REFUSED, PIECE, DONE, WANT };
enum { AT_FORK = 1, AT_DROP, AT_CHDIR, AT_EXEC };
enum { TIMED_OUT = 1, UNKILLABLE = 2, TOO_MANY = 4 };
enum { MAX_BODY = 8 << 20, PIECE_BYTES = 1 << 16, ROUNDS = 2000, WATCH_MS = 20 };
enum { MAX_DEPTH = 100, TARGET_BYTES = 4096 };
enum { PROC_MAGIC = 0x9fa0 };

struct head { uint32_t length, kind, number; };

struct record {
  int32_t status;
  uint32_t error, where, flags;
  uint64_t cpu_us, wall_us;
  uint32_t ooms, refused;
  uint64_t total[2]; /* bytes of stdout and stderr */
};

static uint32_t user, group, watched_pids;
static struct sock_fprog filter;
static struct { uint32_t kind; struct rlimit value; } limits[16];
static uint32_t limit_count;
static char oom_file[64], pids_file[64];

/* --- small things ---------------------------------------------------------------------------- */

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void nap_ms(long ms) { nanosleep(&(struct timespec){0, ms * 1000000}, NULL); }

static int write_all(int fd, const void *data, size_t length) {
  const char *at = data;
  while (length) {
    ssize_t n = write(fd, at, length);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) { poll(&(struct pollfd){fd, POLLOUT, 0}, 1, -1); continue; }
    if (n < 0) return -1;
    at += n;
    length -= (size_t)n;
  }
  return 0;
}

/* The owner is gone when this fails; then there is nobody left to work for. */
static void tell(uint32_t kind, uint32_t number, const void *body, size_t length) {
  struct head head = {(uint32_t)length, kind, number};
  if (write_all(1, &head, sizeof head) < 0 || write_all(1, body, length) < 0) _exit(0);
}

static void refuse_size(uint32_t number, int why, uint64_t size) {
  struct __attribute__((packed)) { uint32_t why; uint64_t size; } word = {(uint32_t)why, size};
  tell(REFUSED, number, &word, sizeof word);
}

static void refuse(uint32_t number, int why) { refuse_size(number, why, 0); }

/* A counter `key N` of a file of the control group; 0 where there is none. */
static uint32_t count_of(const char *path, const char *key) {
  char text[2048];
  int fd = *path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  size_t length = strlen(key);
  for (char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (!strncmp(line, key, length) && line[length] == ' ')
      return (uint32_t)strtoul(line + length + 1, NULL, 10);
  }
  return 0;
}

static void find_counters(void) {
  static const char *const ooms[] = {"/sys/fs/cgroup/memory/memory.oom_control",
                                     "/sys/fs/cgroup/memory.events"};
  static const char *const pids[] = {"/sys/fs/cgroup/pids/pids.events",
                                     "/sys/fs/cgroup/pids.events"};
  for (int i = 0; i < 2; i++) {
    if (!*oom_file && access(ooms[i], R_OK) == 0) strcpy(oom_file, ooms[i]);
    if (!*pids_file && access(pids[i], R_OK) == 0) strcpy(pids_file, pids[i]);
  }
}

/* --- the process tree ------------------------------------------------------------------------ */

struct process { pid_t pid, parent; char state; int below; };

static struct process *processes;
static size_t process_room;
static uint32_t tasks; /* How many the last list had with threads, and with the dead in it. */

/* Of a `/proc/PID/stat` after the name: state, parent and, fifteen fields on, threads. */
#define STAT " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d"

static size_t list_processes(void) {
  size_t count = 0;
  DIR *proc = opendir("/proc");
  tasks = 0;
  if (!proc) return 0;
  for (struct dirent *entry; (entry = readdir(proc));) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    char path[300], line[512], state, *after;
    int parent, threads = 1;
    snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) continue;
    line[n] = 0;
    after = strrchr(line, ')');
    if (!after || sscanf(after + 1, STAT, &state, &parent, &threads) < 2) continue;
    tasks += threads > 0 ? (uint32_t)threads : 1;
    if (state == 'Z') continue;
    if (count == process_room) {
      size_t room = process_room ? process_room * 2 : 256;
      struct process *more = realloc(processes, room * sizeof *more);
      if (!more) break;
      processes = more;
      process_room = room;
    }
    processes[count++] = (struct process){atoi(entry->d_name), parent, state, 0};
  }
  closedir(proc);
  return count;
}

/* Sends a signal to the living below this process, except to those that are stopped already when
 * it is SIGSTOP; returns how many got it. */
static size_t signal_below(int number) {
  size_t count = list_processes(), sent = 0;
  pid_t self = getpid();
  for (int changed = 1; changed;) {
    changed = 0;
    for (size_t i = 0; i < count; i++) {
      struct process *p = &processes[i];
      for (size_t j = 0; !p->below && p->parent != self && j < count; j++)
        if (processes[j].pid == p->parent && processes[j].below) p->below = changed = 1;
      if (!p->below && p->parent == self) p->below = changed = 1;
    }
  }
  for (size_t i = 0; i < count; i++)
    if (processes[i].below && (number != SIGSTOP || processes[i].state != 'T'))
      sent += kill(processes[i].pid, number) == 0;
  return sent;
}

/* --- one command: the minder ----------------------------------------------------------------- */

struct request {
  uint32_t timeout_ms, most;
  char *cwd, **argv, **env;
};

static pid_t command_pid;
static int command_status, command_ended;

/* Whether anything is left to wait for. */
static int reap_command(void) {
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0) return errno != ECHILD;
    if (pid == 0) return 1;
    if (pid == command_pid) command_status = status, command_ended = 1;
  }
}

/* Kills every descendant. A tree is stopped before it is killed: what is stopped forks no more, and
 * keeps its place under the process limit, so a bomb cannot outrun it. */
static int kill_tree(void) {
  for (int turn = 0; turn < ROUNDS; turn++) {
    if (!reap_command()) return 1;
    for (int stops = 0; turn && stops < 50 && signal_below(SIGSTOP); stops++) continue;
    signal_below(SIGKILL);
    if (turn) nap_ms(1);
  }
  return 0;
}

static int drop_rights(void) {
  for (int capability = 0; capability < 64; capability++)
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) break;
  if (setgroups(0, NULL) < 0 && errno != EPERM) return -1;
  if (setresgid(group, group, group) < 0 || setresuid(user, user, user) < 0) return -1;
  struct { uint32_t version; int pid; } head = {0x20080522, 0};
  uint32_t none[6] = {0};
  if (syscall(SYS_capset, &head, none) < 0) return -1;
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  return 0;
}

/* Sets a limit, or keeps the container's own where that is lower. */
static int lower_limit(int kind, struct rlimit wanted) {
  struct rlimit have;
  if (getrlimit(kind, &have) < 0) return -1;
  if (wanted.rlim_max > have.rlim_max) wanted.rlim_max = have.rlim_max;
  if (wanted.rlim_cur > wanted.rlim_max) wanted.rlim_cur = wanted.rlim_max;
  return setrlimit(kind, &wanted);
}

static void close_but(int first) {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, first, ~0u, 0) == 0) return;
#endif
  for (int fd = first; fd < 4096; fd++) close(fd);
}

/* Makes `wanted` the descriptors 0, 1, ... and closes all others. */
static void keep_only(int *wanted, int count) {
  int high[8];
  for (int i = 0; i < count; i++) high[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, 64);
  for (int i = 0; i < count; i++) wanted[i] = dup2(high[i], i);
  close_but(count);
}

/* Turns the forked child into the command; never returns. Its descriptors: stdio, then `failed`. */
static void become(struct request *r, int failed) {
  uint32_t where = AT_DROP;
  setsid();
  int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0) {
    if (write(score, "900", 3) < 0) { /* the group's limit holds all the same */ }
    close(score);
  }
  for (uint32_t i = 0; i < limit_count; i++)
    if (lower_limit((int)limits[i].kind, limits[i].value) < 0) goto fail;
  umask(022);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (drop_rights() < 0) goto fail;
  where = AT_CHDIR;
  if (chdir(r->cwd) < 0) goto fail;
  where = AT_DROP;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) goto fail;
  if (filter.len && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0) goto fail;
  where = AT_EXEC;
  environ = r->env;
  execvp(r->argv[0], r->argv);
fail:;
  uint32_t word[2] = {(uint32_t)errno, where};
  if (write(failed, word, sizeof word) < 0) _exit(126);
  _exit(127);
}

/* Until the command ended, its time is up or it has too many processes; the flags of the record. */
static uint32_t watch(const struct request *r, int signals, uint64_t began) {
  for (;;) {
    struct signalfd_siginfo word;
    while (read(signals, &word, sizeof word) > 0)
      if (word.ssi_signo == SIGTERM) return 0;
    reap_command();
    if (command_ended) return 0;
    long left = -1;
    if (r->timeout_ms) {
      uint64_t due = began + (uint64_t)r->timeout_ms * 1000, now = now_us();
      if (now >= due) return TIMED_OUT;
      left = (long)((due - now + 999) / 1000);
    }
    if (watched_pids) {
      list_processes();
      if (tasks > watched_pids) return TOO_MANY;
      if (left < 0 || left > WATCH_MS) left = WATCH_MS;
    }
    poll(&(struct pollfd){signals, POLLIN, 0}, 1, left > 1000000000 ? 1000000000 : (int)left);
  }
}

/* The life of a minder; its descriptors: stdio of the command, then the report. */
static void mind(struct request *r) {
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, NULL);
  int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), failed[2];
  uint64_t began = now_us();
  uint32_t ooms = count_of(oom_file, "oom_kill"), refused = count_of(pids_file, "max");
  struct record record = {0};
  if (signals < 0 || pipe2(failed, O_CLOEXEC) < 0) _exit(1);
  command_pid = fork();
  if (command_pid == 0) {
    int kept[4] = {0, 1, 2, failed[1]};
    keep_only(kept, 4);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    become(r, 3);
  }
  if (command_pid < 0) record.error = (uint32_t)errno, record.where = AT_FORK;
  for (int fd = 0; fd < 3; fd++) close(fd);
  close(failed[1]);
  if (command_pid > 0) {
    record.flags = watch(r, signals, began);
    if (!kill_tree()) record.flags |= UNKILLABLE;
    uint32_t failure[2];
    if (read(failed[0], failure, sizeof failure) == sizeof failure)
      record.error = failure[0], record.where = failure[1];
  }
  struct rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  record.status = command_status;
  record.cpu_us = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000u +
                  (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  record.wall_us = now_us() - began;
  record.ooms = count_of(oom_file, "oom_kill") - ooms;
  record.refused = count_of(pids_file, "max") - refused;
  _exit(write_all(3, &record, sizeof record) < 0);
}

/* --- commands, seen from the first process --------------------------------------------------- */

/* Where a stream's output goes: its head is passed on at once, its latest bytes are kept in a ring
 * of `room` bytes until the end, what is between is dropped. */
struct stream { int fd; uint32_t head, room; uint64_t total; char *ring; };

struct command {
  struct command *next;
  uint32_t number;
  pid_t minder;
  int in, report, overdue;
  struct stream out[2];
  char *input;
  size_t input_at, input_length;
};

static struct command *commands;

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static char *next_string(char **at, char *end) {
  char *start = *at;
  size_t length = strnlen(start, (size_t)(end - start));
  if (start + length >= end) return NULL;
  *at = start + length + 1;
  return start;
}

/* Takes a request apart; its strings stay in the body. */
static int parse(char *body, size_t length, struct request *r) {
  uint32_t words[4];
  char *at = body + sizeof words, *end = body + length;
  if (length < sizeof words) return -1;
  memcpy(words, body, sizeof words);
  r->timeout_ms = words[0];
  r->most = words[1];
  if (!words[2] || words[2] > length || words[3] > length) return -1;
  r->argv = calloc(words[2] + 1, sizeof(char *));
  r->env = calloc(words[3] + 1, sizeof(char *));
  if (!r->argv || !r->env || !(r->cwd = next_string(&at, end))) return -1;
  for (uint32_t i = 0; i < words[2]; i++)
    if (!(r->argv[i] = next_string(&at, end))) return -1;
  for (uint32_t i = 0; i < words[3]; i++)
    if (!(r->env[i] = next_string(&at, end))) return -1;
  return 0;
}

static void start_command(uint32_t number, char *body, size_t length) {
  struct request r = {0};
  int pairs[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
  struct command *c = calloc(1, sizeof *c);
  int why = EINVAL;
  if (!c || parse(body, length, &r) < 0) goto fail;
  for (int i = 0; i < 4; i++)
    if (pipe2(pairs[i], O_CLOEXEC) < 0) { why = errno; goto fail; }
  pid_t pid = fork();
  if (pid < 0) { why = errno; goto fail; }
  if (pid == 0) {
    int kept[4] = {pairs[0][0], pairs[1][1], pairs[2][1], pairs[3][1]};
    keep_only(kept, 4);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    mind(&r);
  }
  *c = (struct command){.next = commands, .number = number, .minder = pid, .in = pairs[0][1],
                        .report = pairs[3][0]};
  for (int i = 0; i < 2; i++)
    c->out[i] = (struct stream){pairs[i + 1][0], r.most / 2, r.most - r.most / 2, 0, NULL};
  commands = c;
  close(pairs[0][0]);
  for (int i = 1; i < 4; i++) close(pairs[i][1]);
  fcntl(c->in, F_SETFL, O_NONBLOCK);
  for (int i = 0; i < 2; i++) fcntl(c->out[i].fd, F_SETFL, O_NONBLOCK);
  fcntl(c->report, F_SETFL, O_NONBLOCK);
  free(r.argv);
  free(r.env);
  tell(WANT, number, NULL, 0);
  return;
fail:
  for (int i = 0; i < 4; i++) close_fd(&pairs[i][0]), close_fd(&pairs[i][1]);
  free(c);
  free(r.argv);
  free(r.env);
  refuse(number, why);
}

static struct command *find_command(uint32_t number) {
  struct command *c = commands;
  while (c && c->number != number) c = c->next;
  return c;
}

/* Feeds what the command takes; when all is taken the owner may send more. */
static void feed(struct command *c) {
  while (c->in >= 0 && c->input_at < c->input_length) {
    ssize_t n = write(c->in, c->input + c->input_at, c->input_length - c->input_at);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) { close_fd(&c->in); break; }
    c->input_at += (size_t)n;
  }
  free(c->input);
  c->input = NULL;
  c->input_at = c->input_length = 0;
  tell(WANT, c->number, NULL, 0);
}

static void take_input(struct command *c, const char *body, size_t length) {
  if (!length) return close_fd(&c->in);
  if (c->in < 0 || c->input || !(c->input = malloc(length))) return tell(WANT, c->number, NULL, 0);
  memcpy(c->input, body, length);
  c->input_length = length;
  feed(c);
}

static void tell_output(const struct command *c, int which, const char *data, size_t length) {
  static char piece[1 + PIECE_BYTES];
  while (length) {
    size_t n = length < PIECE_BYTES ? length : PIECE_BYTES;
    piece[0] = (char)(which + 1);
    memcpy(piece + 1, data, n);
    tell(OUT, c->number, piece, 1 + n);
    data += n;
    length -= n;
  }
}

/* How much of a stream went out at once, and how much of the rest is in the ring. */
static uint64_t headed(const struct stream *s) { return s->total < s->head ? s->total : s->head; }
static uint64_t tailed(const struct stream *s) {
  uint64_t rest = s->total - headed(s);
  return rest < s->room ? rest : s->room;
}

static void keep(struct stream *s, const char *data, size_t length) {
  if (!s->ring && !(s->ring = malloc(s->room))) {
    s->room = 0;
    return;
  }
  for (uint64_t at = s->total - s->head; length;) {
    size_t where = (size_t)(at % s->room), n = s->room - where;
    if (n > length) n = length;
    memcpy(s->ring + where, data, n);
    data += n;
    length -= n;
    at += n;
  }
}

/* Takes a piece of output; 0 at the end of the stream, -1 when there is none now. */
static int drain(struct command *c, int which) {
  static char piece[PIECE_BYTES];
  struct stream *s = &c->out[which];
  ssize_t n = s->fd < 0 ? 0 : read(s->fd, piece, sizeof piece);
  if (n < 0) return errno == EAGAIN ? -1 : 0;
  if (n == 0) return 0;
  size_t first = (size_t)(s->head - headed(s));
  if (first > (size_t)n) first = (size_t)n;
  tell_output(c, which, piece, first);
  s->total += first;
  if (s->room && first < (size_t)n) keep(s, piece + first, (size_t)n - first);
  s->total += (size_t)n - first;
  return 1;
}

static void tell_tail(struct command *c, int which) {
  struct stream *s = &c->out[which];
  uint64_t kept = s->ring ? tailed(s) : 0, from = s->total - headed(s) - kept;
  if (!kept) return;
  size_t where = (size_t)(from % s->room), n = s->room - where;
  if (n > kept) n = (size_t)kept;
  tell_output(c, which, s->ring + where, n);
  tell_output(c, which, s->ring, (size_t)kept - n);
}

/* Without the last command, nothing but this process may be left. */
static void kill_rest(void) {
  for (int turn = 0; turn < ROUNDS; turn++) {
    if (kill(-1, SIGKILL) < 0 && errno == ESRCH) return;
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    if (turn) nap_ms(1);
  }
}

static int is_minder(pid_t pid) {
  for (struct command *c = commands; c; c = c->next)
    if (c->minder == pid) return 1;
  return 0;
}

/* What a minder that was killed leaves comes to this process: it goes too, however it forks. */
static void kill_orphans(void) {
  for (int turn = 0; turn < ROUNDS; turn++) {
    size_t count = list_processes(), killed = 0;
    for (size_t i = 0; i < count; i++)
      if (processes[i].parent == 1 && !is_minder(processes[i].pid))
        killed += kill(processes[i].pid, SIGKILL) == 0;
    if (!killed) return;
    nap_ms(1);
  }
}

static void finish(struct command **link) {
  struct command *c = *link;
  struct record record = {.status = SIGKILL};
  *link = c->next;
  if (read(c->report, &record, sizeof record) != sizeof record) {
    record = (struct record){.status = SIGKILL, .flags = c->overdue ? TIMED_OUT : 0};
    kill_orphans();
  }
  if (!commands) kill_rest();
  for (int i = 0; i < 2; i++) {
    for (int pieces = 0; pieces < 64 && drain(c, i) > 0; pieces++) continue;
    tell_tail(c, i);
    record.total[i] = c->out[i].total;
    close_fd(&c->out[i].fd);
    free(c->out[i].ring);
  }
  close_fd(&c->in);
  close_fd(&c->report);
  free(c->input);
  tell(EXIT, c->number, &record, sizeof record);
  free(c);
}

static void reap(void) {
  for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
    for (struct command **link = &commands; *link; link = &(*link)->next)
      if ((*link)->minder == pid) {
        finish(link);
        break;
      }
}

/* --- files ----------------------------------------------------------------------------------- */

/* Acts as the user for a while, so that the kernel judges the path as it would for a command. */
static void act_as(uint32_t uid, uint32_t gid) {
  const uid_t same = (uid_t)-1;
  if (uid == 0 && setresuid(same, 0, same) < 0) _exit(3);
  if (setresgid(same, gid, same) < 0) _exit(3);
  if (uid != 0 && setresuid(same, uid, same) < 0) _exit(3);
}

static int open_in(const char *path, int flags, uint32_t mode) {
  struct { uint64_t flags, mode, resolve; } how = {
      (uint64_t)(flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), mode, 0x02 /* no magic links */};
#ifdef SYS_openat2
  int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
  if (fd >= 0 || errno != ENOSYS) return fd;
#endif
  return open(path, (int)how.flags, mode);
}

static int check_regular(int fd, struct stat *st) {
  struct statfs system;
  if (fstat(fd, st) < 0 || fstatfs(fd, &system) < 0) return -1;
  errno = S_ISDIR(st->st_mode) ? EISDIR : EINVAL;
  if (!S_ISREG(st->st_mode)) return -1;
  errno = EACCES;
  return system.f_type == PROC_MAGIC ? -1 : 0;
}

static void send_file(uint32_t number, char *body, size_t length) {
  uint64_t most;
  if (length <= sizeof most || body[length - 1]) return refuse(number, EINVAL);
  memcpy(&most, body, sizeof most);
  act_as(user, group);
  int fd = open_in(body + sizeof most, O_RDONLY, 0), why = errno;
  act_as(0, 0);
  struct stat st;
  if (fd < 0) return refuse(number, why);
  if (check_regular(fd, &st) < 0) why = errno;
  else why = (uint64_t)st.st_size > most ? EFBIG : 0;
  static char piece[PIECE_BYTES];
  for (uint64_t sent = 0; !why;) {
    ssize_t n = read(fd, piece, sizeof piece);
    if (n < 0) why = errno;
    if (n <= 0) break;
    if ((sent += (uint64_t)n) > most) why = EFBIG;
    else tell(PIECE, number, piece, (size_t)n);
  }
  close(fd);
  if (why) refuse_size(number, why, why == EFBIG ? (uint64_t)st.st_size : 0);
  else tell(DONE, number, NULL, 0);
}

static void make_folders(char *path, int own) {
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    if (mkdir(path, 0755) == 0 && own && lchown(path, user, group) < 0) { /* shows at the open */ }
    *slash = '/';
  }
}

/* --- folders --------------------------------------------------------------------------------- */

/* Entries on their way: packed as `kind, mode, size, path length, target length`, path, target. */
struct listing { uint32_t number, left; size_t length; char path[8192], data[PIECE_BYTES]; };

static int tell_entry(struct listing *l, size_t path, const struct stat *st, const char *target) {
  struct __attribute__((packed)) { uint32_t kind, mode; uint64_t size; uint32_t path, target; } head = {
      st->st_mode & S_IFMT, st->st_mode & 07777, (uint64_t)st->st_size, (uint32_t)path,
      (uint32_t)strlen(target)};
  size_t room = sizeof head + path + head.target;
  errno = EFBIG;
  if (!l->left--) return -1;
  if (l->length + room > sizeof l->data) {
    tell(PIECE, l->number, l->data, l->length);
    l->length = 0;
  }
  memcpy(l->data + l->length, &head, sizeof head);
  memcpy(l->data + l->length + sizeof head, l->path, path);
  memcpy(l->data + l->length + sizeof head + path, target, head.target);
  l->length += room;
  return 0;
}

/* Everything below an open folder, which it closes; links are named, not followed. */
static int walk(struct listing *l, int fd, size_t above, int depth) {
  DIR *folder = fd < 0 ? NULL : fdopendir(fd);
  int result = folder ? 0 : -1;
  errno = depth > MAX_DEPTH ? ENAMETOOLONG : errno;
  if (depth > MAX_DEPTH) result = -1;
  while (!result) {
    errno = 0;
    struct dirent *entry = readdir(folder);
    if (!entry) {
      result = errno ? -1 : 0;
      break;
    }
    const char *name = entry->d_name;
    if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
    struct stat st;
    char target[TARGET_BYTES + 1] = "";
    size_t path = above + strlen(name);
    errno = ENAMETOOLONG;
    if (path + 1 >= sizeof l->path) result = -1;
    if (result || fstatat(dirfd(folder), name, &st, AT_SYMLINK_NOFOLLOW) < 0) { result = -1; break; }
    memcpy(l->path + above, name, path - above);
    if (S_ISLNK(st.st_mode) && readlinkat(dirfd(folder), name, target, TARGET_BYTES) < 0) result = -1;
    if (!result) result = tell_entry(l, path, &st, target);
    if (result || !S_ISDIR(st.st_mode)) continue;
    l->path[path] = '/';
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    result = walk(l, openat(dirfd(folder), name, flags), path + 1, depth + 1);
  }
  int why = errno;
  if (folder) closedir(folder);
  else if (fd >= 0) close(fd);
  errno = why;
  return result;
}

static void list_folder(uint32_t number, char *body, size_t length) {
  static struct listing l;
  if (length <= sizeof l.left || body[length - 1]) return refuse(number, EINVAL);
  l.number = number;
  l.length = 0;
  memcpy(&l.left, body, sizeof l.left);
  act_as(user, group);
  int fd = open_in(body + sizeof l.left, O_RDONLY | O_DIRECTORY, 0);
  int why = walk(&l, fd, 0, 0) < 0 ? errno : 0;
  act_as(0, 0);
  if (why) return refuse(number, why);
  if (l.length) tell(PIECE, number, l.data, l.length);
  tell(DONE, number, NULL, 0);
}

/* A file being written. */
struct upload { struct upload *next; uint32_t number; int fd, why; };

static struct upload *uploads;

/* As the user; a place that only root may write takes new files, which the user then owns. */
static int open_upload(char *path, uint32_t mode) {
  struct stat st;
  act_as(user, group);
  make_folders(path, 0);
  int fd = open_in(path, O_WRONLY | O_CREAT, mode), why = errno;
  act_as(0, 0);
  if (fd < 0 && why == EACCES) {
    make_folders(path, 1);
    fd = open_in(path, O_WRONLY | O_CREAT | O_EXCL, mode);
    if (fd < 0 && errno != EEXIST) why = errno;
  }
  errno = why;
  if (fd < 0) return -1;
  if (check_regular(fd, &st) < 0 || ftruncate(fd, 0) < 0) goto fail;
  if (st.st_uid == 0 && user && fchown(fd, user, group) < 0) goto fail;
  act_as(user, group);
  why = fchmod(fd, mode) < 0 ? errno : 0;
  act_as(0, 0);
  errno = why;
  if (!why) return fd;
fail:
  why = errno;
  close(fd);
  errno = why;
  return -1;
}

static void begin_upload(uint32_t number, char *body, size_t length) {
  uint32_t mode;
  struct upload *u = calloc(1, sizeof *u);
  if (!u || length <= sizeof mode || body[length - 1]) {
    free(u);
    return refuse(number, EINVAL);
  }
  memcpy(&mode, body, sizeof mode);
  *u = (struct upload){uploads, number, open_upload(body + sizeof mode, mode), 0};
  if (u->fd < 0) u->why = errno;
  uploads = u;
}

/* More of a file; its end is an empty piece, and is answered. */
static void more_upload(uint32_t number, const char *body, size_t length) {
  struct upload **link = &uploads, *u;
  while (*link && (*link)->number != number) link = &(*link)->next;
  if (!(u = *link)) return;
  if (length) {
    if (!u->why && write_all(u->fd, body, length) < 0) u->why = errno;
    return;
  }
  *link = u->next;
  if (u->fd >= 0 && close(u->fd) < 0 && !u->why) u->why = errno;
  if (u->why) refuse(number, u->why);
  else tell(DONE, number, NULL, 0);
  free(u);
}

/* --- the first process ----------------------------------------------------------------------- */

static int set_up(const char *body, size_t length) {
  struct { uint32_t user, group, watched, limits, filter; } words;
  struct { uint32_t kind, none; uint64_t soft, hard; } limit;
  if (length < sizeof words) return -1;
  memcpy(&words, body, sizeof words);
  size_t room = sizeof words + words.limits * sizeof limit;
  if (words.limits > 16 || length < room + words.filter) return -1;
  user = words.user;
  group = words.group;
  watched_pids = words.watched;
  for (limit_count = 0; limit_count < words.limits; limit_count++) {
    memcpy(&limit, body + sizeof words + limit_count * sizeof limit, sizeof limit);
    limits[limit_count].kind = limit.kind;
    limits[limit_count].value = (struct rlimit){limit.soft, limit.hard};
  }
  filter.len = (unsigned short)(words.filter / sizeof(struct sock_filter));
  filter.filter = malloc(words.filter + 1);
  if (!filter.filter) return -1;
  memcpy(filter.filter, body + room, words.filter);
  /* A runtime gives a mount the mode of the folder that it hides. */
  char *at = (char *)body + room + words.filter, *end = (char *)body + length;
  for (char *path; at < end && (path = next_string(&at, end));)
    if (chmod(path, 01777) < 0) return -1;
  return 0;
}

static void answer(struct head *head, char *body) {
  uint32_t number = head->number;
  struct command *c = find_command(number);
  if (head->kind == SETUP) {
    if (set_up(body, head->length) < 0) tell(BROKEN, 0, NULL, 0);
    else tell(UP, 0, NULL, 0);
  }
  if (head->kind == EXEC) start_command(number, body, head->length);
  if (head->kind == INPUT && c) take_input(c, body, head->length);
  if (head->kind == KILL && c) {
    c->overdue = head->length > 0;
    kill(c->minder, c->overdue ? SIGKILL : SIGTERM);
  }
  if (head->kind == READ) send_file(number, body, head->length);
  if (head->kind == LIST) list_folder(number, body, head->length);
  if (head->kind == WRITE) begin_upload(number, body, head->length);
  if (head->kind == DATA) more_upload(number, body, head->length);
}

/* Reads what is there of the owner's words, and answers whole frames. */
static void listen_to_owner(void) {
  static char *buffer;
  static size_t have, room;
  if (room - have < PIECE_BYTES) {
    size_t more = room ? room * 2 : 4 * PIECE_BYTES;
    char *bigger = more > 4 * (size_t)MAX_BODY ? NULL : realloc(buffer, more);
    if (!bigger) _exit(3);
    buffer = bigger;
    room = more;
  }
  ssize_t n = read(0, buffer + have, room - have);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) _exit(0);
  have += (size_t)n;
  size_t at = 0;
  for (struct head head; have - at >= sizeof head;) {
    memcpy(&head, buffer + at, sizeof head);
    if (head.length > MAX_BODY) _exit(3);
    if (have - at - sizeof head < head.length) break;
    answer(&head, buffer + at + sizeof head);
    at += sizeof head + head.length;
  }
  memmove(buffer, buffer + at, have - at);
  have -= at;
}

static void serve(int signals) {
  static struct pollfd *polled;
  static size_t room;
  for (;;) {
    size_t count = 2, wanted = 2;
    for (struct command *c = commands; c; c = c->next) wanted += 3;
    if (wanted > room) {
      struct pollfd *more = realloc(polled, 2 * wanted * sizeof *more);
      if (!more) _exit(3);
      polled = more;
      room = 2 * wanted;
    }
    polled[0] = (struct pollfd){0, POLLIN, 0};
    polled[1] = (struct pollfd){signals, POLLIN, 0};
    for (struct command *c = commands; c; c = c->next) {
      for (int i = 0; i < 2; i++) polled[count++] = (struct pollfd){c->out[i].fd, POLLIN, 0};
      polled[count++] = (struct pollfd){c->input ? c->in : -1, POLLOUT, 0};
    }
    if (poll(polled, count, -1) < 0 && errno != EINTR) _exit(3);
    count = 2;
    for (struct command *c = commands; c; c = c->next, count += 3) {
      for (int i = 0; i < 2; i++)
        if (polled[count + (size_t)i].revents && drain(c, i) == 0) close_fd(&c->out[i].fd);
      if (polled[count + 2].revents) feed(c);
    }
    if (polled[1].revents) {
      struct signalfd_siginfo word;
      while (read(signals, &word, sizeof word) > 0) continue;
      reap();
    }
    if (polled[0].revents) listen_to_owner();
  }
}

int main(void) {
  if (getpid() != 1) {
    fputs("the agent is the first process of a container, or nothing\n", stderr);
    return 2;
  }
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  prctl(PR_SET_NAME, "agent", 0, 0, 0);
  signal(SIGPIPE, SIG_IGN);
  umask(0);
  close_but(3);
  find_counters();
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, NULL);
  int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) return 3;
  serve(signals);
}

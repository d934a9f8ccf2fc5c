/* The spawn server and supervisor of the native sandbox, as one small program.
 *
 * Run as `box FD` with a SOCK_SEQPACKET socket to the owner. The *server* owns every sandbox of one
 * owner: it forks the first process of a sandbox into a new PID namespace, maps its ids, and ends
 * them all when the owner is gone. That first process, the *supervisor*, carries out the plan (a
 * list of mounts, writes, ... that the owner made), gives up its rights, and starts commands on
 * request. Each command has a *minder*: the reaper of all its descendants, which reports by wait4,
 * keeps the time, and kills what is left.
 *
 * `launcher.py` is the same program in Python; `wire.py` says what the frames and steps mean.
 * Nothing here trusts what runs inside: the candidate cannot signal, trace or write to any of these
 * processes, and they read nothing from it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

enum { VERSION = 1 };
enum { INIT = 1, OPEN, CLOSE, RESET, TEMPLATE, READY = 8, FAILED, GONE };
enum { EXEC = 16, OPENFILE, KILL, FREEZE, THAW, FILLED, ASK, UP = 32, BROKEN, OPENED, REFUSED, FILL };
enum { MKDIR = 1, WRITE, LINK, UNSHARE, MOUNT, PIVOT, MKNOD, HOSTNAME, LOOPBACK, USERNS, COUNTER,
       RLIMIT, FILTER, CLEAN, JOIN, UMOUNT, UNLINK, KEEP,
       BASE, ENTER, LISTEN, OFFER, RULES, ALLOW, RESTRICT, IDMAP = 30, RIGHTS, SPACE };
static const char *const step_names[] = {
    "", "mkdir", "write", "link", "unshare", "mount", "pivot_root", "mknod", "sethostname",
    "loopback", "user namespace", "open", "rlimit", "filter", "clean", "open", "umount", "unlink", "open",
    "base", "enter", "listen", "fill", "landlock rules", "landlock rule", "landlock",
    [IDMAP] = "idmap", [RIGHTS] = "rights", [SPACE] = "open"};
enum { OPTIONAL = 1, CREATE = 2, SELF_MAP = 4, KEEP_OLD = 8 };
enum { OOM_COUNTER, PIDS_COUNTER, PIDS_LIMIT };
enum { READ_FILE, REPLACE, TAKE, FOLDER, PROC, LAYER };
enum { TIMED_OUT = 1, UNKILLABLE = 2 };
enum { AT_FORK = 1, AT_CHDIR, AT_EXEC, AT_DROP };
enum { MAX_FRAME = 60000, MAX_FDS = 8, ROUNDS = 3000, FREEZE_AFTER = 4,
       KILL_ALL_AFTER = 100, YOUNG_ROUNDS = 200, PATIENT_AFTER = 20, STOP_ROUNDS = 2000, KILL_ALL_FROZEN = 2000,
       HALF_TURN = 16384, KEPT_FD = 50, LAYER_FD = 51, SPACE_FD = 52, TEMPLATE_FD = 3, TEMPLATE_MS = 120000 };
enum { IN_PLACE = 1 };
#define IN_MEMORY 0x80000000u
#define NOBODY 0xffffffffu
#define PROC_MAGIC 0x9fa0
#define HEAD_LENGTH 40 /* of what a template is told of a sandbox: counts, process limit */
#define KEPT_PROC "/proc/self/fd/50" /* KEPT_FD */

struct frame {
  uint32_t kind, number;
  char *body;
  size_t length;
  int fds[MAX_FDS], fd_count;
  void *mapped;
};

struct step {
  uint8_t kind, flags;
  uint16_t count;
  uint32_t a, b, c;
  char *s[4];
  uint32_t n[4];
};

/* --- frames ---------------------------------------------------------------------------------- */

static char frame_buffer[8 + MAX_FRAME];

static int send_fds(int sock, uint32_t kind, uint32_t number, const void *body, size_t length,
                    const int *fds, int count, int flags) {
  uint32_t head[2] = {kind, number};
  struct iovec parts[2] = {{head, sizeof head}, {(void *)body, length}};
  char space[CMSG_SPACE(sizeof(int) * MAX_FDS)];
  size_t bytes = sizeof(int) * (size_t)count;
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  if (count) {
    memset(space, 0, sizeof space);
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(bytes);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(c), fds, bytes);
  }
  ssize_t sent;
  do sent = sendmsg(sock, &message, MSG_NOSIGNAL | flags);
  while (sent < 0 && errno == EINTR);
  return sent < 0 ? -1 : 0;
}

static int send_frame(int sock, uint32_t kind, uint32_t number, const void *body, size_t length,
                      int fd) {
  return send_fds(sock, kind, number, body, length, &fd, fd >= 0, 0);
}

/* 1: a frame; 0: the other side is gone. */
static int receive_frame(int sock, struct frame *f) {
  char space[CMSG_SPACE(sizeof(int) * MAX_FDS)];
  struct iovec part = {frame_buffer, sizeof frame_buffer};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  ssize_t got;
  do got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  memset(f, 0, sizeof *f);
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); got > 0 && c; c = CMSG_NXTHDR(&message, c))
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
      f->fd_count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      memcpy(f->fds, CMSG_DATA(c), (size_t)f->fd_count * sizeof(int));
    }
  if (got < 8) return 0;
  memcpy(&f->kind, frame_buffer, 4);
  memcpy(&f->number, frame_buffer + 4, 4);
  f->body = frame_buffer + 8;
  f->length = (size_t)got - 8;
  if (f->kind & IN_MEMORY && f->fd_count > 0) {
    int memory = f->fds[--f->fd_count];
    struct stat st;
    f->kind &= ~IN_MEMORY;
    if (fstat(memory, &st) < 0) return 0;
    f->length = (size_t)st.st_size;
    f->mapped = mmap(0, f->length, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory, 0);
    close(memory);
    if (f->mapped == MAP_FAILED) return 0;
    f->body = f->mapped;
  }
  return 1;
}

static void release_frame(struct frame *f) {
  for (int i = 0; i < f->fd_count; i++) close(f->fds[i]);
  if (f->mapped) munmap(f->mapped, f->length);
  else if (f->body) memset(f->body, 0, f->length); /* an interpreter that is forked sees no frame */
}

static uint32_t number_at(const char *at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return value;
}

/* The string at *at (NUL-terminated in place); NULL at the end of the body. */
static char *take_string(char **at, const char *end, uint32_t *length) {
  if (end - *at < 4) return NULL;
  uint32_t n = number_at(*at);
  if ((size_t)(end - *at) < (size_t)n + 5) return NULL;
  char *found = *at + 4;
  *at += (size_t)n + 5;
  if (length) *length = n;
  return found;
}

static int next_step(char **at, const char *end, struct step *s) {
  if (end - *at < 16) return 0;
  memset(s, 0, sizeof *s);
  s->kind = (uint8_t)(*at)[0];
  s->flags = (uint8_t)(*at)[1];
  memcpy(&s->count, *at + 2, 2);
  s->a = number_at(*at + 4);
  s->b = number_at(*at + 8);
  s->c = number_at(*at + 12);
  *at += 16;
  for (int i = 0; i < s->count; i++) {
    uint32_t length;
    char *string = take_string(at, end, &length);
    if (!string) return 0;
    if (i < 4) s->s[i] = string, s->n[i] = length;
  }
  return 1;
}

/* --- small things ---------------------------------------------------------------------------- */

static int write_file(const char *path, const char *data, size_t length, int flags, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CLOEXEC | flags, mode);
  if (fd < 0) return -1;
  while (length) {
    ssize_t n = write(fd, data, length);
    if (n < 0) {
      int why = errno;
      close(fd);
      errno = why;
      return -1;
    }
    data += n;
    length -= (size_t)n;
  }
  return close(fd);
}

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void nap_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static void close_from(unsigned lowest) {
  if (syscall(SYS_close_range, lowest, ~0u, 0) == 0) return;
  long most = sysconf(_SC_OPEN_MAX);
  for (long fd = lowest; fd < most; fd++) close((int)fd);
}

static int child_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void drain(int fd) {
  struct signalfd_siginfo info[8];
  while (read(fd, info, sizeof info) > 0) continue;
}

/* --- carrying out a plan --------------------------------------------------------------------- */

static int sync_fd = -1;
static int kept_net = -1; /* the network namespace of a sandbox that is reset */
static int counters[3] = {-1, -1, -1};
static char pids_max[32] = "max";
static int joins[8], join_count;
static struct { int kind; struct rlimit value; } limits[24];
static int limit_count;
static struct sock_fprog filter;
static int control_fd = -1, rules_fd = -1;
static uint32_t kept_rights;

/* Maps its own ids. Its /proc files belong to it only while it is dumpable; a sandbox's /proc is
 * read-only by now, and the one below it is held open. */
static int self_map(const struct step *s) {
  prctl(PR_SET_DUMPABLE, 1);
  if (fcntl(KEPT_FD, F_GETFD) < 0) {
    write_file("/proc/self/setgroups", "deny", 4, 0, 0);
    if (write_file("/proc/self/uid_map", s->s[0], s->n[0], 0, 0) < 0) return -1;
    return write_file("/proc/self/gid_map", s->s[1], s->n[1], 0, 0);
  }
  write_file(KEPT_PROC "/self/setgroups", "deny", 4, 0, 0);
  if (write_file(KEPT_PROC "/self/uid_map", s->s[0], s->n[0], 0, 0) < 0) return -1;
  return write_file(KEPT_PROC "/self/gid_map", s->s[1], s->n[1], 0, 0);
}

static int user_namespace(const struct step *s) {
  if (unshare(CLONE_NEWUSER) < 0) return -1;
  if (s->flags & SELF_MAP) {
    if (self_map(s) < 0) return -1;
  } else {
    char answer = 'U';
    if (write(sync_fd, &answer, 1) != 1 || read(sync_fd, &answer, 1) != 1 || answer != 'G') {
      errno = EPERM;
      return -1;
    }
  }
  if (s->a != NOBODY) {
    if (setgroups(0, NULL) < 0 && errno != EPERM) return -1;
    if (setresgid(s->b, s->b, s->b) < 0 || setresuid(s->a, s->a, s->a) < 0) return -1;
  }
  prctl(PR_SET_DUMPABLE, 0);
  return prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static int loopback_up(void) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
  strcpy(request.ifr_name, "lo");
  int result = ioctl(fd, SIOCSIFFLAGS, &request);
  int why = errno;
  close(fd);
  errno = why;
  return result;
}

static int listener = -1; /* goes to the owner */

static int listen_inside(const struct step *s) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->a)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0) return -1;
  return listen(listener, (int)s->b);
}

static int pivot(const struct step *s) {
  if (chdir(s->s[0]) < 0) return -1;
  const char *old = s->flags & KEEP_OLD ? s->s[1] : ".";
  if (syscall(SYS_pivot_root, ".", old) < 0) return -1;
  if (!(s->flags & KEEP_OLD) && umount2(".", MNT_DETACH) < 0) return -1;
  return chdir("/");
}

static int enter(const struct step *s) {
  if (chdir(s->s[0]) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0) return -1;
  return chroot(".") < 0 ? -1 : chdir("/");
}

static int again; /* whether a plan is carried out once more: its control groups are there */

/* With CREATE it may be there already, and changes its owner. */
static int make_folder(const struct step *s) {
  if (mkdir(s->s[0], s->a) < 0 && !(errno == EEXIST && s->flags & CREATE))
    return again && errno == EEXIST ? 0 : -1;
  return s->b == NOBODY ? 0 : lchown(s->s[0], s->b, s->c);
}

/* A process that waits in a user namespace with the given map, and a descriptor of that namespace. */
static pid_t mapped_space(const struct step *s, int *space) {
  int pair[2];
  char path[64], word;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) return -1;
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair[0]);
    if (unshare(CLONE_NEWUSER) == 0 && write(pair[1], "U", 1) == 1)
      while (read(pair[1], &word, 1) > 0) continue;
    _exit(0);
  }
  close(pair[1]);
  int ready = pid > 0 && read(pair[0], &word, 1) == 1;
  snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
  ready = ready && write_file(path, s->s[2], s->n[2], 0, 0) == 0;
  snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
  ready = ready && write_file(path, s->s[2], s->n[2], 0, 0) == 0;
  snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
  *space = ready ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  int why = errno;
  close(pair[0]);
  if (pid > 0) waitpid(pid, NULL, 0);
  errno = why;
  return *space < 0 ? -1 : pid;
}

/* A bind mount of s[0] at s[1], read-only, on which the ids on disk are shown through a map. */
static int map_mount(const struct step *s) {
  struct { uint64_t set, clear, propagation, space; } attributes = {
      0x1 | 0x2 | 0x4 | 0x100000 /* read-only, no set-uid, no devices, map */, 0, 0, 0};
  int space, result = -1;
  if (mapped_space(s, &space) < 0) return -1;
  int tree = (int)syscall(SYS_open_tree, AT_FDCWD, s->s[0], 1 /* clone */ | O_CLOEXEC);
  attributes.space = (uint64_t)space;
  if (tree >= 0 && syscall(SYS_mount_setattr, tree, "", 0x1000 /* this mount */, &attributes,
                           sizeof attributes) == 0)
    result = (int)syscall(SYS_move_mount, tree, "", AT_FDCWD, s->s[1], 4 /* from is empty */);
  int why = errno;
  close(space);
  if (tree >= 0) close(tree);
  errno = why;
  return result;
}

static int open_counter(const struct step *s) {
  if (s->a > PIDS_LIMIT) return -1;
  int fd = open(s->s[0], (s->a == PIDS_LIMIT ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
  if (fd < 0) return -1;
  counters[s->a] = fd;
  if (s->a == PIDS_LIMIT) snprintf(pids_max, sizeof pids_max, "%s", s->s[1]);
  return 0;
}

static int keep_limit(const struct step *s) {
  if (limit_count >= 24) return -1;
  limits[limit_count].kind = (int)s->a;
  limits[limit_count].value.rlim_cur = strtoull(s->s[0], NULL, 10);
  limits[limit_count++].value.rlim_max = strtoull(s->s[1], NULL, 10);
  return 0;
}

static int keep_filter(const struct step *s) {
  filter.len = (unsigned short)(s->n[0] / sizeof(struct sock_filter));
  filter.filter = malloc(s->n[0]);
  if (!filter.filter) return -1;
  memcpy(filter.filter, s->s[0], s->n[0]);
  return 0;
}

/* Lets the owner put a snapshot into the writable layer, and waits until it is there. */
static int offer_layer(const struct step *s) {
  int fd = open(s->s[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  uint32_t word[2];
  ssize_t got = send_frame(control_fd, FILL, 0, NULL, 0, fd);
  close(fd);
  do got = got < 0 ? got : recv(control_fd, word, sizeof word, 0);
  while (got < 0 && errno == EINTR);
  errno = ECANCELED;
  return got == sizeof word && word[0] == FILLED ? 0 : -1;
}

/* Landlock, as the kernel's landlock.h lays it out; older kernels take zeros for what they lack. */
static int make_rules(const struct step *s) {
  uint64_t attributes[3] = {s->a, s->b, s->c};
  rules_fd = (int)syscall(SYS_landlock_create_ruleset, attributes, sizeof attributes, 0);
  return rules_fd < 0 ? -1 : fcntl(rules_fd, F_SETFD, FD_CLOEXEC);
}

static int allow_below(const struct step *s) {
  struct __attribute__((packed)) { uint64_t access; int32_t folder; } rule = {s->a, -1};
  rule.folder = open(s->s[0], O_PATH | O_CLOEXEC);
  if (rule.folder < 0) return -1;
  int result = (int)syscall(SYS_landlock_add_rule, rules_fd, 1, &rule, 0), why = errno;
  close(rule.folder);
  errno = why;
  return result;
}

static int restrict_self(void) {
  if (syscall(SYS_landlock_restrict_self, rules_fd, 0) < 0) return -1;
  return close(rules_fd);
}

static const char *or_null(const char *s) { return s && *s ? s : NULL; }

static int carry_out_step(const struct step *s) {
  switch (s->kind) {
  case MKDIR: return make_folder(s);
  case WRITE: return write_file(s->s[0], s->s[1], s->n[1], s->flags & CREATE ? O_CREAT : 0, s->a);
  case LINK: return symlink(s->s[0], s->s[1]);
  case UNSHARE: return unshare((int)s->a & ~(kept_net >= 0 ? CLONE_NEWNET : 0));
  case MOUNT: return mount(or_null(s->s[0]), s->s[1], or_null(s->s[2]), s->a, or_null(s->s[3]));
  case PIVOT: return pivot(s);
  case MKNOD: return mknod(s->s[0], s->a, s->b);
  case HOSTNAME: return sethostname(s->s[0], s->n[0]);
  case LOOPBACK: return loopback_up();
  case USERNS: return user_namespace(s);
  case COUNTER: return open_counter(s);
  case RLIMIT: return keep_limit(s);
  case FILTER: return keep_filter(s);
  case CLEAN: return 0;
  case JOIN: {
    int fd = open(s->s[0], O_WRONLY | O_CLOEXEC);
    if (fd < 0 || join_count >= 8) return -1;
    joins[join_count++] = fd;
    return 0;
  }
  case UMOUNT: return umount2(s->s[0], MNT_DETACH);
  case UNLINK: return unlink(s->s[0]);
  case BASE: return 0;
  case ENTER: return enter(s);
  case LISTEN: return listen_inside(s);
  case OFFER: return offer_layer(s);
  case RULES: return make_rules(s);
  case ALLOW: return allow_below(s);
  case RESTRICT: return restrict_self();
  case IDMAP: return map_mount(s);
  case RIGHTS: kept_rights = s->a; return 0;
  case SPACE: {
    int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || dup3(fd, SPACE_FD, O_CLOEXEC) < 0) return -1;
    return close(fd);
  }
  case KEEP: {
    int fd = open(s->s[0], O_PATH | O_CLOEXEC);
    if (fd < 0 || dup3(fd, s->a ? LAYER_FD : KEPT_FD, O_CLOEXEC) < 0) return -1;
    return close(fd);
  }
  default: errno = ENOSYS; return -1;
  }
}

/* 0, or -1 with `error` filled: errno and the step's name. */
static int carry_out(char *plan, size_t length, char *error, size_t *error_length) {
  char *at = plan, *end = plan + length;
  struct step s;
  while (next_step(&at, end, &s)) {
    if (carry_out_step(&s) == 0 || s.flags & OPTIONAL) continue;
    uint32_t why = (uint32_t)errno;
    memcpy(error, &why, 4);
    const char *name = s.kind <= RIGHTS && step_names[s.kind] ? step_names[s.kind] : "step";
    *error_length = 4 + (size_t)snprintf(error + 4, 300, "%s %.80s %.80s", name,
                                         s.count > 0 && s.kind < RLIMIT && s.kind != USERNS ? s.s[0] : "",
                                         s.count > 1 && s.kind > WRITE && s.kind < USERNS ? s.s[1] : "");
    if (*error_length > 303) *error_length = 303;
    return -1;
  }
  return 0;
}

/* --- killing a tree -------------------------------------------------------------------------- */

struct process { pid_t pid, parent; int below; unsigned long long started; };

static struct process *processes;
static size_t process_room;

/* All living processes, from /proc. */
static size_t list_processes(void) {
  size_t count = 0;
  DIR *proc = opendir("/proc");
  if (!proc) return 0;
  for (struct dirent *entry; (entry = readdir(proc));) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    char path[300], line[512];
    snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) continue;
    line[n] = 0;
    char *after = strrchr(line, ')'), state;
    int parent;
    unsigned long long started;
    if (!after || sscanf(after + 1, " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                                    " %*s %*s %*s %llu", &state, &parent, &started) != 3)
      continue;
    if (state == 'Z') continue;
    if (count == process_room) {
      size_t room = process_room ? process_room * 2 : 256;
      struct process *more = realloc(processes, room * sizeof *more);
      if (!more) break;
      processes = more;
      process_room = room;
    }
    processes[count++] = (struct process){atoi(entry->d_name), parent, 0, started};
  }
  closedir(proc);
  return count;
}

/* Tells what was born before it from what was born after it; `Moment` in kernel.py says how. */
struct moment { unsigned long long before, after; pid_t last; };

static unsigned long long ticks_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  unsigned long long hz = (unsigned long long)sysconf(_SC_CLK_TCK);
  return (unsigned long long)t.tv_sec * hz + (unsigned long long)t.tv_nsec * hz / 1000000000u;
}

/* This moment; where no process can be born for it, whatever starts in its ticks comes after. */
static void take_moment(struct moment *m) {
  m->before = ticks_now();
  m->last = vfork();
  if (m->last == 0) _exit(0);
  if (m->last > 0) waitpid(m->last, NULL, 0);
  else m->last = 0;
  m->after = ticks_now();
}

static int precedes(const struct moment *m, const struct process *p) {
  if (p->started < m->before || p->started > m->after) return p->started > m->after;
  int ahead = p->pid - m->last;
  return (ahead > 0 && ahead < HALF_TURN) || ahead < -HALF_TURN;
}

/* Kills the living below `root`, or those that were born after a moment. The spared and everything
 * below them stay, but what is below a spared one counts when a moment is given: a shell lives on,
 * its children do not. Returns how many were killed. */
static size_t kill_below(pid_t root, const pid_t *spared, size_t spared_count,
                         const struct moment *since) {
  size_t count = list_processes(), killed = 0;
  for (int changed = 1; changed;) {
    changed = 0;
    for (size_t i = 0; i < count; i++) {
      struct process *p = &processes[i];
      if (p->below) continue;
      int below = p->parent == root;
      for (size_t j = 0; !below && j < count; j++)
        below = processes[j].pid == p->parent &&
                (processes[j].below == 1 || (since && processes[j].below == 2));
      for (size_t j = 0; below && j < spared_count; j++)
        if (spared[j] == p->pid) below = 2;
      if (below) p->below = below, changed = 1;
    }
  }
  for (size_t i = 0; i < count; i++)
    if (processes[i].below == 1 && (!since || precedes(since, &processes[i]))) {
      kill(processes[i].pid, SIGKILL);
      killed++;
    }
  return killed;
}

/* Kills every descendant; `reap` collects what died and says whether anything is left. A tree that
 * forks faster than it is killed is first forbidden to fork (the group's process limit goes to 0
 * for that moment); at last everything but the supervisor is killed at once. */
static int kill_tree(const pid_t *spared, size_t spared_count, int (*reap)(void)) {
  int frozen = 0, gone = 0;
  int last_resort = counters[PIDS_LIMIT] >= 0 ? KILL_ALL_FROZEN : KILL_ALL_AFTER;
  for (int turn = 0; turn < ROUNDS && !gone; turn++) {
    if (reap && !reap()) { gone = 1; break; }
    if (turn == FREEZE_AFTER && counters[PIDS_LIMIT] >= 0)
      frozen = pwrite(counters[PIDS_LIMIT], "0", 1, 0) == 1;
    size_t living = kill_below(getpid(), spared, spared_count, NULL);
    if (living && turn >= last_resort) kill(-1, SIGKILL);
    if (!reap && !living) gone = 1;
    if (turn && !gone) nap_ms(1);
  }
  if (frozen && pwrite(counters[PIDS_LIMIT], pids_max, strlen(pids_max), 0) < 0) return 0;
  return gone;
}

/* --- freezing --------------------------------------------------------------------------------- */

static pid_t *stopped; /* what stood still already before a freeze */
static size_t stopped_count;

static int stands_still(pid_t pid, int patient);

/* Whether a thread that no signal reaches waits in vfork for a child that stands still: it goes on no
 * sooner than that child does. */
static int waits_for_still(const char *tasks, const char *thread) {
  char path[400], list[4096];
  snprintf(path, sizeof path, "%s/%s/children", tasks, thread);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, list, sizeof list - 1);
  if (fd >= 0) close(fd);
  list[n > 0 ? n : 0] = 0;
  int pid, used, found = 0;
  for (char *at = list; !found && sscanf(at, "%d%n", &pid, &used) == 1; at += used)
    found = stands_still(pid, 1);
  return found;
}

/* Whether every thread of a process stands still; `patient` where it had time to. */
static int stands_still(pid_t pid, int patient) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR *tasks = opendir(path);
  if (!tasks) return 1;
  int still = 1;
  for (struct dirent *entry; still && (entry = readdir(tasks));) {
    if (entry->d_name[0] == '.') continue;
    char name[400];
    snprintf(name, sizeof name, "%s/%s/stat", path, entry->d_name);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) continue;
    line[n] = 0;
    char *after = strrchr(line, ')');
    still = after && strlen(after) > 2 && strchr("TtZX", after[2]) != NULL;
    if (!still && patient && after && after[1] && after[2] == 'D')
      still = waits_for_still(path, entry->d_name);
  }
  closedir(tasks);
  return still;
}

static void thaw(void) {
  size_t count = list_processes();
  for (size_t i = 0; i < count; i++) {
    int before = processes[i].pid == 1;
    for (size_t j = 0; j < stopped_count; j++) before |= stopped[j] == processes[i].pid;
    if (!before) kill(processes[i].pid, SIGCONT);
  }
  free(stopped);
  stopped = NULL;
  stopped_count = 0;
}

/* Stops every process of the sandbox but this one; -1 if one cannot be stopped. */
static int freeze(void) {
  size_t count = list_processes();
  free(stopped);
  stopped_count = 0;
  stopped = calloc(count + 1, sizeof *stopped);
  if (!stopped) return -1;
  for (size_t i = 0; i < count; i++)
    if (processes[i].pid != 1 && stands_still(processes[i].pid, 0))
      stopped[stopped_count++] = processes[i].pid;
  for (int turn = 0; turn < STOP_ROUNDS; turn++) {
    if (kill(-1, SIGSTOP) < 0 && errno == ESRCH) return 0;
    int still = 1;
    count = list_processes();
    for (size_t i = 0; still && i < count; i++)
      still = processes[i].pid == 1 || stands_still(processes[i].pid, turn > PATIENT_AFTER);
    if (still) return 0;
    nap_ms(1);
  }
  thaw();
  errno = EBUSY;
  return -1;
}

/* --- one command: the minder ----------------------------------------------------------------- */

struct command {
  uint32_t timeout_ms, uid, gid, flags;
  char *cwd, **argv, **env;
  int stdio[3], report, extra[MAX_FDS - 4], extra_count;
};

static pid_t command_pid;
static int command_status, command_ended;

static int reap_command(void) {
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0) return 0;
    if (pid == 0) return 1;
    if (pid == command_pid) command_status = status, command_ended = 1;
  }
}

static uint32_t count_of(int slot, const char *key) {
  char text[2048];
  if (counters[slot] < 0) return 0;
  ssize_t n = pread(counters[slot], text, sizeof text - 1, 0);
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

static int drop_rights(const struct command *c) {
  if (setgroups(0, NULL) < 0 && errno != EPERM) return -1;
  if (setresgid(c->gid, c->gid, c->gid) < 0 || setresuid(c->uid, c->uid, c->uid) < 0) return -1;
  struct { uint32_t version; int pid; } head = {0x20080522, 0};
  uint32_t kept = c->uid ? 0 : kept_rights;
  uint32_t sets[6] = {kept, kept, 0, 0, 0, 0};
  return (int)syscall(SYS_capset, &head, sets);
}

static int confine(void) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -1;
  return filter.len ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) : 0;
}

/* Whether it is the null device: a command gets its own sandbox's, not the host's. */
static int is_null(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}
/* In a template: runs argv[0] as Python in this very process; never returns. */
static void (*interpret)(char **argv, char **env);

/* Turns the forked child into the command; never returns. */
static void become(struct command *c, int failed) {
  uint32_t where = AT_DROP;
  signal(SIGPIPE, SIG_DFL);
  setsid();
  for (int i = 0; i < join_count; i++)
    if (write(joins[i], "0", 1) < 0) goto fail;
  for (int i = 0; i < limit_count; i++)
    if (setrlimit(limits[i].kind, &limits[i].value) < 0) goto fail;
  umask(022);
  int high[MAX_FDS], count = 4 + c->extra_count;
  for (int i = 0; i < count; i++) {
    int fd = i < 3 ? c->stdio[i] : i == 3 ? failed : c->extra[i - 4];
    int own = i < 3 && is_null(fd) ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    high[i] = fcntl(own < 0 ? fd : own, F_DUPFD_CLOEXEC, 100);
    if (own >= 0) close(own);
  }
  for (int i = 0; i < count; i++) dup3(high[i], i, i == 3 ? O_CLOEXEC : 0);
  failed = 3;
  close_from((unsigned)count);
  if (drop_rights(c) < 0) goto fail;
  where = AT_CHDIR;
  if (chdir(c->cwd) < 0) goto fail;
  where = AT_DROP;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (confine() < 0) goto fail;
  where = AT_EXEC;
  environ = c->env;
  if (c->flags & IN_PLACE && interpret) {
    close(failed); /* nothing to forge with */
    prctl(PR_SET_DUMPABLE, 1);
    signal(SIGPIPE, SIG_IGN); /* as Python has it */
    interpret(c->argv, c->env);
    _exit(126);
  }
  errno = ENOSYS;
  if (c->flags & IN_PLACE) goto fail;
  execvp(c->argv[0], c->argv);
fail:;
  uint32_t word[2] = {(uint32_t)errno, where};
  if (write(failed, word, sizeof word) < 0) _exit(126);
  _exit(127);
}

/* Until the command ended, its time is up or nobody waits; the flags of the status. */
static uint32_t watch(const struct command *c, int signals, uint64_t began) {
  struct pollfd polled[2] = {{signals, POLLIN, 0}, {c->report, 0, 0}};
  for (;;) {
    reap_command();
    if (command_ended) return 0;
    int left = -1;
    if (c->timeout_ms) {
      uint64_t due = began + (uint64_t)c->timeout_ms * 1000, now = now_us();
      if (now >= due) return TIMED_OUT;
      uint64_t ms = (due - now + 999) / 1000;
      left = ms > 1000000000 ? 1000000000 : (int)ms;
    }
    poll(polled, 2, left);
    drain(signals);
    if (polled[1].revents) return 0;
  }
}

static int mind(struct command *c) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal(SIGPIPE, SIG_IGN);
  int signals = child_signals(), failed[2];
  uint64_t began = now_us();
  uint32_t ooms = count_of(OOM_COUNTER, "oom_kill"), refused = count_of(PIDS_COUNTER, "max");
  struct __attribute__((packed)) {
    int32_t status;
    uint32_t error, where, flags;
    uint64_t cpu_us, wall_us;
    uint32_t ooms, refused;
  } word = {0};
  if (pipe2(failed, O_CLOEXEC) < 0) return 1;
  /* The child that becomes a program borrows this memory until then: nothing is copied for it. What
   * it changes there (errno, environ) is not looked at. An interpreter needs memory of its own. */
  command_pid = c->flags & IN_PLACE ? fork() : vfork();
  if (command_pid == 0) become(c, failed[1]);
  if (command_pid < 0) word.error = (uint32_t)errno, word.where = AT_FORK;
  for (int i = 0; i < 3; i++) close(c->stdio[i]);
  for (int i = 0; i < c->extra_count; i++) close(c->extra[i]);
  close(failed[1]);
  if (command_pid > 0) {
    word.flags = watch(c, signals, began);
    if (!kill_tree(NULL, 0, reap_command)) word.flags |= UNKILLABLE;
    uint32_t failure[2];
    if (read(failed[0], failure, sizeof failure) == sizeof failure)
      word.error = failure[0], word.where = failure[1];
  }
  struct rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  word.status = command_status;
  word.cpu_us = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000u +
                (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  word.wall_us = now_us() - began;
  word.ooms = count_of(OOM_COUNTER, "oom_kill") - ooms;
  word.refused = count_of(PIDS_COUNTER, "max") - refused;
  if (write(c->report, &word, sizeof word) < 0) return word.flags & UNKILLABLE ? 1 : 0;
  return word.flags & UNKILLABLE ? 1 : 0;
}

static int parse_command(struct frame *f, struct command *c) {
  char *at = f->body + 24, *end = f->body + f->length;
  if (f->length < 24 || f->fd_count < 4) return -1;
  c->timeout_ms = number_at(f->body);
  c->uid = number_at(f->body + 4);
  c->gid = number_at(f->body + 8);
  c->flags = number_at(f->body + 12);
  uint32_t argc = number_at(f->body + 16), envc = number_at(f->body + 20);
  c->argv = calloc(argc + 1, sizeof(char *));
  c->env = calloc(envc + 1, sizeof(char *));
  if (!c->argv || !c->env || !argc || !(c->cwd = take_string(&at, end, NULL))) return -1;
  for (uint32_t i = 0; i < argc; i++)
    if (!(c->argv[i] = take_string(&at, end, NULL))) return -1;
  for (uint32_t i = 0; i < envc; i++)
    if (!(c->env[i] = take_string(&at, end, NULL))) return -1;
  memcpy(c->stdio, f->fds, sizeof c->stdio);
  c->report = f->fds[3];
  c->extra_count = f->fd_count - 4;
  memcpy(c->extra, f->fds + 4, (size_t)c->extra_count * sizeof(int));
  return 0;
}

/* --- the supervisor -------------------------------------------------------------------------- */

struct minder { pid_t pid; uint32_t number; int asked; struct moment since; };

static struct minder *minders;
static size_t minder_count, minder_room;

static int start_command(struct frame *f) {
  struct command c;
  if (minder_count == minder_room) {
    size_t room = minder_room ? minder_room * 2 : 16;
    struct minder *more = realloc(minders, room * sizeof *more);
    if (!more) return -1;
    minders = more;
    minder_room = room;
  }
  pid_t pid = fork();
  if (pid < 0) return -1;
  if (pid == 0) {
    if (parse_command(f, &c) < 0) _exit(1);
    _exit(mind(&c));
  }
  minders[minder_count++] = (struct minder){.pid = pid, .number = f->number};
  return 0;
}

static void reap_minders(void) {
  int status, abandoned = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    for (size_t i = 0; i < minder_count; i++)
      if (minders[i].pid == pid) {
        minders[i] = minders[--minder_count];
        abandoned |= status != 0;
        break;
      }
  if (!abandoned) return;
  pid_t *spared = calloc(minder_count + 1, sizeof *spared);
  for (size_t i = 0; spared && i < minder_count; i++) spared[i] = minders[i].pid;
  kill_tree(spared, spared ? minder_count : 0, NULL);
  free(spared);
}

static void make_folders(char *path, uint32_t uid, uint32_t gid) {
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    if (mkdir(path, 0755) == 0 && lchown(path, uid, gid) < 0) { /* shows at the open */ }
    *slash = '/';
  }
}

/* The writable layer, as a folder that can be read. */
static int open_layer(int control, uint32_t number) {
  int fd = openat(LAYER_FD, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  int sent = send_frame(control, OPENED, number, NULL, 0, fd);
  close(fd);
  return sent;
}

/* Whether an open file is new in a folder of the system that this user could not write to: what a
 * candidate's tools write must not become a library or a setting of its judge's programs. The file
 * goes again. */
static int plants(int fd, uint32_t uid) {
  static const char *const places[] = {"/etc/", "/usr/", "/bin/", "/sbin/", "/lib"};
  char link[64], path[4096];
  struct stat st;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 1;
  path[n] = 0;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    if (strncmp(path, places[i], strlen(places[i]))) continue;
    char *slash = strrchr(path, '/');
    *slash = 0;
    int open_to_it = stat(path, &st) == 0 && (st.st_uid == uid || st.st_mode & S_IWOTH);
    *slash = '/';
    if (open_to_it) return 0;
    unlink(path);
    return 1;
  }
  return 0;
}

static int open_file(int control, struct frame *f) {
  char *at = f->body + 16, *path;
  if (f->length < 16 || !(path = take_string(&at, f->body + f->length, NULL))) {
    errno = EINVAL;
    return -1;
  }
  uint32_t purpose = number_at(f->body), writing = purpose == REPLACE, mode = number_at(f->body + 4);
  uint32_t uid = number_at(f->body + 8), gid = number_at(f->body + 12);
  if (purpose == LAYER) return open_layer(control, f->number);
  if (writing) make_folders(path, uid, gid);
  struct { uint64_t flags, mode, resolve; } how = {
      (uint64_t)((writing ? O_WRONLY | O_CREAT : O_RDONLY) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC),
      writing ? mode : 0, 0x02 | 0x10};
  int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), there = 0;
  if (writing) how.flags |= O_EXCL;
  int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
  if (writing && fd < 0 && errno == EEXIST) {
    there = 1;
    how.flags &= ~(uint64_t)(O_CREAT | O_EXCL);
    how.mode = 0;
    fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
  }
  int why = errno;
  close(root);
  errno = why;
  if (fd < 0) return -1;
  struct stat st;
  struct statfs system;
  if (fstat(fd, &st) < 0 || fstatfs(fd, &system) < 0) goto fail;
  errno = EINVAL;
  if (purpose != PROC && (purpose == FOLDER ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode)))
    goto fail;
  errno = EACCES;
  if ((system.f_type == PROC_MAGIC) != (purpose == PROC)) goto fail;
  if (there && uid && st.st_uid != uid) goto fail; /* an image's own: only root inside replaces it */
  if (writing && !there && uid && plants(fd, uid)) goto fail;
  if (writing && (ftruncate(fd, 0) < 0 || fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0))
    goto fail;
  if (purpose == TAKE && unlink(path) < 0) goto fail;
  int sent = send_frame(control, OPENED, f->number, NULL, 0, fd);
  close(fd);
  return sent;
fail:
  why = errno;
  close(fd);
  errno = why;
  return -1;
}

/* Kills a command, or only what is young below its minder (see KILL_BODY in wire.py). */
static void kill_command(struct frame *f) {
  for (size_t i = 0; i < minder_count; i++) {
    if (minders[i].number != f->number) continue;
    if (f->length < 8) {
      kill(minders[i].pid, SIGKILL);
      continue;
    }
    pid_t shell = (pid_t)number_at(f->body);
    kill(shell, (int)number_at(f->body + 4));
    for (int turn = 0; minders[i].asked && turn < YOUNG_ROUNDS; turn++) {
      if (!kill_below(minders[i].pid, &shell, 1, &minders[i].since)) break;
      nap_ms(1);
    }
  }
}

/* Hands a session's process a word; what is born from here on belongs to it. */
static int ask(struct frame *f) {
  errno = ESRCH;
  for (size_t i = 0; i < minder_count; i++) {
    if (minders[i].number != f->number || f->fd_count < 1) continue;
    take_moment(&minders[i].since);
    minders[i].asked = 1;
    return write(f->fds[0], f->body, f->length) < 0 ? -1 : 0;
  }
  return -1;
}

static void answer(int control, struct frame *f) {
  int result = 0;
  if (f->kind == EXEC) result = start_command(f);
  if (f->kind == OPENFILE) result = open_file(control, f);
  if (f->kind == KILL) kill_command(f);
  if (f->kind == ASK) result = ask(f);
  if (f->kind == THAW) thaw();
  if (f->kind == FREEZE && (result = freeze()) == 0) result = open_layer(control, f->number);
  if (result < 0) {
    uint32_t why = (uint32_t)errno;
    send_frame(control, REFUSED, f->number, &why, sizeof why, -1);
  }
  release_frame(f);
}

/* Moves the descriptors that a supervisor needs to 3, 4, ... and closes all others above 2. */
static void keep_only(int *control) {
  int *wanted[16] = {control, &sync_fd}, count = 2;
  for (int i = 0; i < join_count; i++) wanted[count++] = &joins[i];
  for (int i = 0; i < 3; i++)
    if (counters[i] >= 0) wanted[count++] = &counters[i];
  for (int i = 0; i < count; i++) *wanted[i] = fcntl(*wanted[i], F_DUPFD_CLOEXEC, 100);
  for (int i = 0; i < count; i++)
    if ((*wanted[i] = dup3(*wanted[i], 3 + i, O_CLOEXEC)) < 0) _exit(2);
  close_from(3 + (unsigned)count);
}

/* The life of a sandbox's first process; never returns. */
static void supervise(char *plan, size_t length, int control, int sync) {
  sync_fd = sync;
  keep_only(&control);
  control_fd = control;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "supervisor");
  prctl(PR_SET_DUMPABLE, 0);
  char error[304];
  size_t error_length;
  if (carry_out(plan, length, error, &error_length) < 0) {
    send_frame(control, BROKEN, 0, error, error_length, -1);
    _exit(1);
  }
  for (int capability = 0; capability < 64; capability++) {
    if (capability < 32 && kept_rights >> capability & 1) continue;
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) break;
  }
  close(sync_fd);
  close(KEPT_FD);
  int signals = child_signals();
  if (signals < 0 || send_frame(control, UP, 0, NULL, 0, listener) < 0) _exit(1);
  if (listener >= 0) close(listener);
  struct pollfd polled[2] = {{control, POLLIN, 0}, {signals, POLLIN, 0}};
  for (;;) {
    if (poll(polled, 2, -1) < 0 && errno != EINTR) _exit(1);
    if (polled[1].revents) {
      drain(signals);
      reap_minders();
    }
    if (polled[0].revents) {
      struct frame f;
      if (!receive_frame(control, &f)) _exit(0);
      answer(control, &f);
    }
  }
}

/* --- the server ------------------------------------------------------------------------------ */

struct box {
  pid_t pid;
  uint32_t number;
  int sync;
  int control, net; /* of a reset that waits for the death of `pid`; else -1 */
  char *plan; /* owns the strings below */
  size_t length;
  char *maps[2];
  uint32_t map_length[2];
  char *clean[16];
  int clean_count;
};

static struct box *boxes;
static size_t box_count, box_room;
static int owner;
static const char *proc = "/host/proc";
static pid_t template_pid; /* of the template that this server has its sandboxes from, if any */
static int template_sock = -1;
static int template_lost; /* whether it is dead; the server then ends, and its owner starts another */

/* Control groups go; one is busy for a moment after its last process. */
static void remove_groups(char **folders, int count) {
  for (int i = count - 1; i >= 0; i--)
    for (int turn = 0; turn < 200 && rmdir(folders[i]) < 0 && errno == EBUSY; turn++) nap_ms(1);
}

/* Notes what the server itself needs of a plan; strings point into it. */
static void read_plan(char *plan, size_t length, struct box *b) {
  char *at = plan, *end = plan + length;
  for (struct step s; next_step(&at, end, &s);) {
    if (s.kind == CLEAN && b->clean_count < 16) b->clean[b->clean_count++] = s.s[0];
    for (int i = 0; s.kind == USERNS && i < 2; i++)
      b->maps[i] = s.s[i], b->map_length[i] = s.n[i];
  }
}

struct base { char *name; int space; };

static struct base *bases;
static size_t base_count;
static int own_space = -1;

/* The life of a process that makes a base and holds it until the server has it; never returns. */
static void make_base(char *plan, size_t length, int sock) {
  char error[304] = {0};
  size_t error_length = 4;
  prctl(PR_SET_DUMPABLE, 1); /* so that the server may open its namespace */
  if (carry_out(plan, length, error, &error_length) < 0) {
    send_frame(sock, FAILED, 0, error, error_length, -1);
    _exit(1);
  }
  send_frame(sock, READY, 0, NULL, 0, -1);
  char word;
  while (read(sock, &word, 1) > 0) continue;
  _exit(0);
}

/* The mount namespace of a base, made if it is not there; -1 with `error` filled. */
static int base_space(const struct step *s, char *error, size_t *error_length) {
  for (size_t i = 0; i < base_count; i++)
    if (!strcmp(bases[i].name, s->s[0])) return bases[i].space;
  int pair[2], space = -1;
  uint32_t why = ENOMEM;
  memcpy(error, &why, 4);
  *error_length = 4;
  struct base *more = realloc(bases, (base_count + 1) * sizeof *more);
  if (!more) return -1;
  bases = more;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return -1;
  pid_t pid = fork();
  if (pid == 0) {
    close(pair[0]);
    make_base(s->s[1], s->n[1], pair[1]);
  }
  close(pair[1]);
  char answer[8 + 304];
  ssize_t got = pid < 0 ? -1 : recv(pair[0], answer, sizeof answer, 0);
  if (got >= 8 && number_at(answer) == READY) {
    char path[64];
    snprintf(path, sizeof path, "/host/proc/%d/ns/mnt", pid);
    space = open(path, O_RDONLY | O_CLOEXEC);
    why = (uint32_t)errno;
    memcpy(error, &why, 4);
  } else if (got > 12) {
    *error_length = (size_t)got - 8;
    memcpy(error, answer + 8, *error_length);
  }
  close(pair[0]);
  if (pid > 0) waitpid(pid, NULL, 0);
  if (space >= 0) bases[base_count++] = (struct base){strdup(s->s[0]), space};
  return space;
}

static void failed(uint32_t number, const char *what) {
  char body[128];
  uint32_t why = (uint32_t)errno;
  memcpy(body, &why, 4);
  int n = snprintf(body + 4, sizeof body - 4, "%s", what);
  send_frame(owner, FAILED, number, body, 4 + (size_t)n, -1);
}

/* What the server itself does of a plan: the control groups, and the base to be born into. Returns
 * the base's mount namespace and where the supervisor's part begins; -1 with `error` filled. */
static int prepare(struct frame *f, char **rest, char *error, size_t *error_length) {
  char *at = f->body, *end = f->body + f->length;
  for (struct step s; next_step(&at, end, &s);) {
    if (s.kind != BASE) continue;
    size_t own = (size_t)(s.s[0] - 20 - f->body);
    *rest = at;
    if (carry_out(f->body, own, error, error_length) < 0) return -1;
    return base_space(&s, error, error_length);
  }
  uint32_t why = EINVAL;
  memcpy(error, &why, 4);
  *error_length = 4;
  return -1;
}

static void forget_groups(void) {
  for (int i = 0; i < join_count; i++) close(joins[i]);
  for (int i = 0; i < 3; i++)
    if (counters[i] >= 0) close(counters[i]), counters[i] = -1;
  join_count = 0;
}

/* Forks the supervisor into the base's mount namespace and a new PID namespace. */
static pid_t bear(struct frame *f, char *rest, int space, int sync) {
  if (setns(space, CLONE_NEWNS) < 0) return -1;
  pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    if (kept_net >= 0 && setns(kept_net, CLONE_NEWNET) < 0) _exit(1);
    supervise(rest, (size_t)(f->body + f->length - rest), f->fds[0], sync);
  }
  int why = errno;
  if (setns(own_space, CLONE_NEWNS) < 0) _exit(3);
  errno = why;
  return pid;
}

/* A box has its first process: its ids will be mapped when it asks at `sync`. */
static void watch_box(struct box *b, pid_t pid, int sync, int events) {
  b->pid = pid;
  b->sync = sync;
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)(uint32_t)pid << 32 | 3};
  epoll_ctl(events, EPOLL_CTL_ADD, sync, &event);
}

static void hear_template(void);
static void serve(int signals, int watch_owner);
static void start_template(struct frame *f, int events);

/* Lets the template bear a box: it gets the groups that are open and the rest of the plan. It may
 * be telling of the dead meanwhile, so that neither waits for the other. */
static int hand_over(struct frame *f, const char *rest) {
  static char body[HEAD_LENGTH + MAX_FRAME];
  size_t length = (size_t)(f->body + f->length - rest);
  if (length > MAX_FRAME - HEAD_LENGTH) { errno = EMSGSIZE; return -1; }
  int fds[MAX_FDS] = {f->fds[0]}, count = 1;
  for (int i = 0; i < join_count && count < MAX_FDS; i++) fds[count++] = joins[i];
  uint32_t head[2] = {(uint32_t)join_count, 0};
  for (int i = 0; i < 3; i++)
    if (counters[i] >= 0 && count < MAX_FDS) fds[count++] = counters[i], head[1] |= 1u << i;
  memset(body, 0, HEAD_LENGTH);
  memcpy(body, head, sizeof head);
  memcpy(body + sizeof head, pids_max, sizeof pids_max);
  memcpy(body + HEAD_LENGTH, rest, length);
  while (send_fds(template_sock, OPEN, f->number, body, HEAD_LENGTH + length, fds, count,
                  MSG_DONTWAIT) < 0) {
    struct pollfd polled = {template_sock, POLLIN | POLLOUT, 0};
    int full = errno == EAGAIN;
    if (full) poll(&polled, 1, -1);
    if (polled.revents & POLLIN) hear_template();
    if (!full || polled.revents & (POLLERR | POLLHUP)) return template_lost = 1, -1;
  }
  return 0;
}

/* Removes what there is of a box without a process. */
static void forget_box(uint32_t number) {
  for (size_t i = 0; i < box_count; i++) {
    if (boxes[i].number != number) continue;
    remove_groups(boxes[i].clean, boxes[i].clean_count);
    free(boxes[i].plan);
    boxes[i] = boxes[--box_count];
    return;
  }
}

/* Lets a box's first process be born; 0, or -1 with the owner told and the box forgotten. */
static int start_box(struct box *b, struct frame *f, int events) {
  char error[304], *rest = NULL;
  size_t error_length = 4;
  int pair[2] = {-1, -1}, started = -1;
  int space = prepare(f, &rest, error, &error_length);
  if (space >= 0 && template_sock >= 0) {
    started = hand_over(f, rest);
  } else if (space >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0) {
    pid_t pid = bear(f, rest, space, pair[1]);
    if (pid > 0) started = 0, watch_box(b, pid, pair[0], events);
  }
  if (space >= 0) {
    uint32_t why = (uint32_t)errno;
    memcpy(error, &why, 4);
    memcpy(error + 4, "clone", 5);
    error_length = 9;
  }
  if (pair[1] >= 0) close(pair[1]);
  forget_groups();
  if (started == 0 || template_lost) return 0;
  if (pair[0] >= 0) close(pair[0]);
  forget_box(f->number);
  return send_frame(owner, FAILED, f->number, error, error_length, -1), -1;
}

/* A place for one more box, zeroed; NULL where there is no memory. */
static struct box *next_box(uint32_t number) {
  if (box_count == box_room) {
    size_t room = box_room ? box_room * 2 : 64;
    struct box *more = realloc(boxes, room * sizeof *more);
    if (!more) return NULL;
    boxes = more;
    box_room = room;
  }
  struct box *b = &boxes[box_count];
  memset(b, 0, sizeof *b);
  b->number = number;
  b->control = b->net = b->sync = -1;
  return b;
}

static void open_box(struct frame *f, int events) {
  struct box *b = next_box(f->number);
  if (!b || f->fd_count != 1 || !(b->plan = malloc(f->length))) return failed(f->number, "memory");
  b->length = f->length;
  memcpy(b->plan, f->body, f->length);
  read_plan(b->plan, f->length, b);
  box_count++;
  start_box(b, f, events);
}

/* Ends a sandbox's processes and its file system; it is born anew once they are gone. */
static void reset_box(struct frame *f) {
  for (size_t i = 0; i < box_count; i++) {
    struct box *b = &boxes[i];
    if (b->number != f->number || b->control >= 0 || b->pid <= 0 || f->fd_count != 1) continue;
    char path[64];
    snprintf(path, sizeof path, "/host/proc/%d/ns/net", b->pid);
    b->net = open(path, O_RDONLY | O_CLOEXEC);
    b->control = f->fds[0];
    f->fd_count = 0;
    kill(b->pid, SIGKILL);
    return;
  }
}

/* The second half of a reset, if the box is to be reset. */
static int revive(struct box *b, int events) {
  if (b->control < 0) return 0;
  struct frame f = {.kind = OPEN, .number = b->number, .length = b->length, .fds = {b->control},
                    .fd_count = 1};
  f.body = malloc(b->length);
  if (!f.body) return 0;
  memcpy(f.body, b->plan, b->length);
  again = 1;
  kept_net = b->net;
  b->control = b->net = -1;
  start_box(b, &f, events);
  again = 0;
  if (kept_net >= 0) close(kept_net);
  kept_net = -1;
  close(f.fds[0]);
  free(f.body);
  return 1;
}

static void map_ids(pid_t pid) {
  for (size_t i = 0; i < box_count; i++) {
    struct box *b = &boxes[i];
    if (b->pid != pid || b->sync < 0) continue;
    char word, path[64];
    int mapped = 1;
    if (read(b->sync, &word, 1) == 1) {
      snprintf(path, sizeof path, "%s/%d/uid_map", proc, pid);
      mapped = write_file(path, b->maps[0], b->map_length[0], 0, 0) == 0;
      snprintf(path, sizeof path, "%s/%d/gid_map", proc, pid);
      mapped = mapped && write_file(path, b->maps[1], b->map_length[1], 0, 0) == 0;
      mapped = mapped && write(b->sync, "G", 1) == 1;
    }
    close(b->sync);
    b->sync = -1;
    if (!mapped) kill(pid, SIGKILL);
  }
}

/* Buries the dead; 0 when the template is among them, which ends this server. */
static int reap_boxes(int events) {
  int32_t status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == template_pid) return 0;
    for (size_t i = 0; i < box_count; i++) {
      struct box *b = &boxes[i];
      if (b->pid != pid) continue;
      if (b->sync >= 0) close(b->sync);
      b->sync = -1;
      int revived = revive(b, events);
      if (revived) break;
      uint32_t number = b->number;
      forget_box(number);
      send_frame(owner, GONE, number, &status, sizeof status, -1);
      break;
    }
  }
  return 1;
}

static void close_box(uint32_t number) {
  for (size_t i = 0; i < box_count; i++) {
    struct box *b = &boxes[i];
    if (b->number != number) continue;
    if (b->control >= 0) close(b->control), close(b->net);
    b->control = b->net = -1;
    if (b->pid > 0) kill(b->pid, SIGKILL);
    else send_frame(template_sock, CLOSE, number, NULL, 0, -1);
  }
}

/* --- templates: an interpreter with modules, from which sandboxes are forked ------------------- */

/* One word of the template: a box is gone, or did not come up. */
static void hear_template(void) {
  char body[8 + 304];
  ssize_t got = recv(template_sock, body, sizeof body, MSG_DONTWAIT);
  if (got < 8) return;
  uint32_t kind = number_at(body), number = number_at(body + 4);
  forget_box(number);
  send_frame(owner, kind, number, body + 8, (size_t)got - 8, -1);
}

/* In the template: bears a box from this very process. */
static void open_born(struct frame *f, int events) {
  struct box *b = next_box(f->number);
  int pair[2];
  if (!b || f->length < HEAD_LENGTH || !(b->plan = malloc(f->length)))
    return failed(f->number, "memory");
  memcpy(b->plan, f->body + HEAD_LENGTH, f->length - HEAD_LENGTH);
  read_plan(b->plan, f->length - HEAD_LENGTH, b);
  int at = 1;
  join_count = (int)number_at(f->body);
  for (int i = 0; i < join_count && at < f->fd_count; i++) joins[i] = f->fds[at++];
  for (int i = 0; i < 3; i++)
    counters[i] = number_at(f->body + 4) & 1u << i && at < f->fd_count ? f->fds[at++] : -1;
  memcpy(pids_max, f->body + 8, sizeof pids_max);
  pid_t pid = -1;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0) {
    pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
      if (setns(SPACE_FD, CLONE_NEWNS) < 0) _exit(1);
      supervise(f->body + HEAD_LENGTH, f->length - HEAD_LENGTH, f->fds[0], pair[1]);
    }
    close(pair[1]);
  }
  join_count = 0;
  counters[0] = counters[1] = counters[2] = -1;
  if (pid < 0) {
    free(b->plan);
    return failed(f->number, "clone");
  }
  box_count++;
  watch_box(b, pid, pair[0], events);
}

/* From here an interpreter is the server of the sandboxes that are forked from it: it bears them
 * into the mount namespace at SPACE_FD, and their Python commands go on in `run`. */
int template_serve(void (*run)(char **, char **)) {
  interpret = run;
  owner = TEMPLATE_FD;
  proc = "/proc";
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, NULL);
  umask(0);
  int signals = child_signals();
  fcntl(owner, F_SETFD, FD_CLOEXEC);
  fcntl(SPACE_FD, F_SETFD, FD_CLOEXEC);
  if (signals < 0 || send_frame(owner, READY, VERSION, NULL, 0, -1) < 0) return 1;
  serve(signals, -1);
  return 0; /* it is the first process of its PID namespace: all end with it */
}

/* Turns the forked child into the interpreter; never returns. */
static void become_template(char *plan, size_t length, char **argv, char **env, int sock, int sync) {
  char error[304];
  size_t error_length;
  sock = fcntl(sock, F_DUPFD_CLOEXEC, 100);
  sync_fd = fcntl(sync, F_DUPFD_CLOEXEC, 100);
  sock = dup3(sock, TEMPLATE_FD, O_CLOEXEC);
  sync_fd = dup3(sync_fd, TEMPLATE_FD + 1, O_CLOEXEC);
  close_from(TEMPLATE_FD + 2);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (carry_out(plan, length, error, &error_length) == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    fcntl(sock, F_SETFD, 0);
    fcntl(SPACE_FD, F_SETFD, 0);
    close(LAYER_FD);
    umask(022);
    environ = env;
    execvp(argv[0], argv);
    uint32_t why = (uint32_t)errno;
    memcpy(error, &why, 4);
    error_length = 4 + (size_t)snprintf(error + 4, 300, "exec %.80s", argv[0]);
  }
  send_frame(sock, FAILED, 0, error, error_length, -1);
  _exit(1);
}

static int map_template(int sync, pid_t pid, const char *maps, uint32_t length) {
  char word, path[64];
  if (read(sync, &word, 1) != 1) return 0; /* it maps itself, or is dead: both will show */
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%d/%s", proc, pid, i ? "gid_map" : "uid_map");
    if (write_file(path, maps, length, 0, 0) < 0) return -1;
  }
  return write(sync, "G", 1) == 1 ? 0 : -1;
}

/* Starts the interpreter that all sandboxes of this server are forked from, and waits for it. */
static void start_template(struct frame *f, int events) {
  char *at = f->body + 8, *end = f->body + f->length, error[304], *argv[64] = {0}, *env[64] = {0};
  struct step base = {0};
  uint32_t plan_length = 0, maps_length = 0;
  size_t error_length;
  if (f->length < 8 || template_pid) return;
  uint32_t argc = number_at(f->body), envc = number_at(f->body + 4);
  base.s[0] = take_string(&at, end, NULL);
  base.s[1] = take_string(&at, end, &base.n[1]);
  char *plan = take_string(&at, end, &plan_length), *maps = take_string(&at, end, &maps_length);
  for (uint32_t i = 0; i < argc && i < 63; i++) argv[i] = take_string(&at, end, NULL);
  for (uint32_t i = 0; i < envc && i < 63; i++) env[i] = take_string(&at, end, NULL);
  int pair[2], sync[2], space = maps ? base_space(&base, error, &error_length) : -1;
  errno = EINVAL;
  if (space < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync) < 0 || setns(space, CLONE_NEWNS) < 0)
    return failed(f->number, "template");
  pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) become_template(plan, plan_length, argv, env, pair[1], sync[1]);
  if (setns(own_space, CLONE_NEWNS) < 0) _exit(3);
  close(pair[1]);
  close(sync[1]);
  if (pid < 0) return failed(f->number, "clone");
  template_pid = pid;
  template_sock = pair[0];
  if (map_template(sync[0], pid, maps, maps_length) < 0) kill(pid, SIGKILL);
  close(sync[0]);
  struct pollfd polled[2] = {{template_sock, POLLIN, 0}, {owner, POLLRDHUP, 0}};
  char body[8 + 304];
  ssize_t got = poll(polled, 2, TEMPLATE_MS) > 0 && polled[0].revents
                    ? recv(template_sock, body, sizeof body, 0) : -1;
  if (got >= 8 && number_at(body) == READY) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 4};
    epoll_ctl(events, EPOLL_CTL_ADD, template_sock, &event);
    send_frame(owner, READY, f->number, NULL, 0, -1);
    return;
  }
  kill(pid, SIGKILL);
  errno = ETIMEDOUT;
  if (got > 12) send_frame(owner, FAILED, f->number, body + 8, (size_t)got - 8, -1);
  else failed(f->number, "the template ended, or was not ready in time");
}

/* One frame of the owner; 0 when it is gone. */
static int serve_owner(int events) {
  struct frame f;
  if (!receive_frame(owner, &f)) return 0;
  if (f.kind == OPEN && interpret) open_born(&f, events);
  else if (f.kind == OPEN) open_box(&f, events);
  if (f.kind == RESET) reset_box(&f);
  if (f.kind == CLOSE) close_box(f.number);
  if (f.kind == TEMPLATE) start_template(&f, events);
  release_frame(&f);
  return 1;
}

static void serve(int signals, int watch_owner) {
  int events = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
  epoll_ctl(events, EPOLL_CTL_ADD, owner, &event);
  event.data.u64 = 1;
  epoll_ctl(events, EPOLL_CTL_ADD, signals, &event);
  event.data.u64 = 2;
  if (watch_owner >= 0) epoll_ctl(events, EPOLL_CTL_ADD, watch_owner, &event);
  for (;;) {
    struct epoll_event ready[32];
    int count = epoll_wait(events, ready, 32, -1);
    for (int i = 0; i < count; i++) {
      uint32_t what = (uint32_t)ready[i].data.u64;
      if (what == 2 || (what == 0 && !serve_owner(events))) return;
      if (what == 1) {
        drain(signals);
        if (!reap_boxes(events)) return;
      }
      if (template_lost) return;
      if (what == 4) hear_template();
      if (what == 3) map_ids((pid_t)(ready[i].data.u64 >> 32));
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  owner = atoi(argv[1]);
  umask(0);
  pid_t parent = getppid();
  size_t room = strlen(argv[0]);
  memset(argv[0], 0, room);
  memcpy(argv[0], "quintain", room < 8 ? room : 8);
  for (int number = 1; number < 65; number++) signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_SETMASK, &set, NULL);
  int signals = child_signals();
  int watch_owner = (int)syscall(SYS_pidfd_open, parent, 0);
  struct frame f;
  if (!receive_frame(owner, &f) || f.kind != INIT) return 1;
  struct box stage = {0};
  char error[304];
  size_t error_length;
  char *plan = malloc(f.length);
  if (!plan) return 1;
  memcpy(plan, f.body, f.length);
  if (carry_out(f.body, f.length, error, &error_length) < 0) {
    send_frame(owner, FAILED, 0, error, error_length, -1);
    return 1;
  }
  release_frame(&f);
  read_plan(plan, f.length, &stage);
  own_space = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  if (own_space < 0 || send_frame(owner, READY, VERSION, NULL, 0, -1) < 0) return 1;
  serve(signals, watch_owner);
  if (template_pid && kill(template_pid, SIGKILL) == 0) waitpid(template_pid, NULL, 0);
  for (size_t i = 0; i < box_count; i++)
    if (boxes[i].pid > 0) kill(boxes[i].pid, SIGKILL);
  for (size_t i = 0; i < box_count; i++) {
    if (boxes[i].pid > 0) waitpid(boxes[i].pid, NULL, 0);
    remove_groups(boxes[i].clean, boxes[i].clean_count);
  }
  remove_groups(stage.clean, stage.clean_count);
  return 0;
}

/* Starts a virtual machine's process where it can reach nothing but what it was given.
 *
 *   jail OWNER UID [-g GROUP_FILE]... [-l KIND LIMIT]... [-r PATH]... [-d DEVICE]... -- argv...
 *
 * Joins control groups, then enters namespaces of its own (mounts, network, IPC, names) whose root
 * holds the given paths and nothing else, all read-only; gives up every right and becomes UID (0:
 * stays who it is, in a user namespace). The kernel kills it when OWNER, its parent, dies.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 4
#endif
#define MAX_PATHS 64
enum { READ_ONLY = 1, NO_SUID = 2, NO_DEVICES = 4 };

struct attributes { uint64_t set, clear, propagation, user; };
struct given { const char *path; int tree, device; };

static void die(const char *what)
{
    fprintf(stderr, "jail: %s: %s\n", what, strerror(errno));
    exit(125);
}

static void write_all(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        die(path);
    close(fd);
}

static void leash(pid_t owner)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != owner)
        die("the owner is gone");
}

static void own_users(void)
{
    char map[64];
    uid_t uid = getuid();
    gid_t gid = getgid();
    if (unshare(CLONE_NEWUSER))
        die("user namespace");
    write_all("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    write_all("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    write_all("/proc/self/gid_map", map);
}

static void make_parents(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        if (mkdir(path, 0755) && errno != EEXIST)
            die(path);
        *at = '/';
    }
}

/* Takes hold of a path before the old root is covered. */
static struct given take(const char *path, int device)
{
    struct attributes lock = {READ_ONLY | NO_SUID | (device ? 0 : NO_DEVICES), 0, 0, 0};
    struct given found = {path, -1, device};
    found.tree = syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | O_CLOEXEC);
    if (found.tree < 0)
        die(path);
    if (device)
        lock.set = NO_SUID;
    if (syscall(SYS_mount_setattr, found.tree, "", AT_EMPTY_PATH, &lock, sizeof lock))
        die(path);
    return found;
}

/* The root's own copy of a device that its user may open, whatever the rights of the host's. */
static void make_device(struct given given, const char *target, uid_t uid)
{
    struct stat state;
    if (fstat(given.tree, &state) || mknod(target, S_IFCHR | 0600, state.st_rdev)
        || chown(target, uid, uid))
        die(target);
    close(given.tree);
}

static void place(struct given given, uid_t uid)
{
    char target[4096];
    struct stat state;
    if (snprintf(target, sizeof target, ".%s", given.path) >= (int)sizeof target)
        die(given.path);
    if (fstat(given.tree, &state))
        die(given.path);
    make_parents(target);
    if (given.device && uid) {
        make_device(given, target, uid);
        return;
    }
    if (S_ISDIR(state.st_mode) ? mkdir(target, 0755) && errno != EEXIST
                               : mknod(target, S_IFREG | 0644, 0) && errno != EEXIST)
        die(target);
    if (syscall(SYS_move_mount, given.tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH))
        die(target);
    close(given.tree);
}

/* Distributions link these into /usr; elsewhere they are given as paths. */
static void link_programs(void)
{
    const char *names[] = {"bin", "sbin", "lib", "lib64"};
    char from[16], target[64];
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        snprintf(from, sizeof from, "/%s", names[n]);
        ssize_t size = readlink(from, target, sizeof target - 1);
        if (size <= 0)
            continue;
        target[size] = 0;
        if (symlink(target, names[n]) && errno != EEXIST)
            die(from);
    }
}

static void enter_root(struct given *paths, int count, uid_t uid)
{
    struct attributes lock = {READ_ONLY | NO_SUID, 0, 0, 0};
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        die("mounts");
    if (mount("jail", "/tmp", "tmpfs", MS_NOSUID, "size=1m,mode=755") || chdir("/tmp"))
        die("root");
    link_programs();
    for (int n = 0; n < count; n++)
        place(paths[n], uid);
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        die("pivot");
    if (syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &lock, sizeof lock))
        die("read-only root");
}

static void give_up_rights(uid_t uid)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    for (int n = 0; n < 64; n++)
        if (prctl(PR_CAPBSET_DROP, n) && errno != EINVAL)
            die("capabilities");
    if (uid && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
        die("user");
    if (syscall(SYS_capset, &head, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        die("rights");
}

int main(int argc, char **argv)
{
    struct given paths[MAX_PATHS];
    int count = 0, at = 3;
    if (argc < 5) {
        fputs("jail: OWNER UID [options] -- argv\n", stderr);
        return 125;
    }
    pid_t owner = atoi(argv[1]);
    uid_t uid = strtoul(argv[2], NULL, 10);
    leash(owner);
    for (int n = 3; n < argc && strcmp(argv[n], "--"); n++)
        if (!strcmp(argv[n], "-g"))
            write_all(argv[++n], "0");
    if (!uid)
        own_users();
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS))
        die("namespaces");
    for (; at < argc && strcmp(argv[at], "--"); at++) {
        if (count == MAX_PATHS || at + 2 >= argc) {
            errno = EINVAL;
            die(argv[at]);
        }
        if (!strcmp(argv[at], "-r") || !strcmp(argv[at], "-d")) {
            paths[count] = take(argv[at + 1], argv[at][1] == 'd');
            count++, at++;
        } else if (!strcmp(argv[at], "-l")) {
            struct rlimit limit;
            limit.rlim_cur = limit.rlim_max = strtoull(argv[at + 2], NULL, 10);
            if (setrlimit(atoi(argv[at + 1]), &limit))
                die("limit");
            at += 2;
        } else
            at++;
    }
    enter_root(paths, count, uid);
    give_up_rights(uid);
    leash(owner);
    execv(argv[at + 1], argv + at + 1);
    die(argv[at + 1]);
}

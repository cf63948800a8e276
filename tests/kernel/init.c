/* PID 1 of the test guest.
 *
 * It starts in an initramfs that holds this program, the kernel modules to load
 * (/modules, in the order of their names) and small files from the launcher:
 * /job, the shell commands to run; /show, the path of the folder that they run in, and, where
 * a folder is to be writable, /keep, its path.
 * It mounts the host's files, runs the job there, reports its exit code and restarts,
 * which ends the emulator.  Whatever stops it before that leaves no exit code. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOT "/root" /* where the host's files are mounted before they become / */
#define OUTPUT_PORT "/dev/vport0p1"
#define STATUS_PORT "/dev/vport0p2"

static void die(const char *what) {
    printf("init: %s: %m\n", what);
    reboot(RB_AUTOBOOT);
    _exit(1);
}

static void mount_new(const char *type, const char *target, const char *options) {
    mkdir(target, 0755); /* most exist already */
    if (mount(type, target, type, 0, options))
        die(target);
}

/* Reads a whole small file; NULL where there is none. */
static char *read_file(const char *path) {
    static const size_t limit = 1 << 17; /* the kernel's own limit for one argument */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = calloc(1, limit);
    if (!text || read(fd, text, limit - 1) < 0)
        die(path);
    close(fd);
    return text;
}

static void load_modules(void) {
    struct dirent **entries;
    int count = scandir("/modules", &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        if (entries[i]->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/modules/%s", entries[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
            die(path);
        close(fd);
    }
}

static void make_folders(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    mkdir(path, 0755);
}

/* Holds a folder of the host's, or puts it back: it may lie in one that is covered in between. */
static void hold(const char *folder, const char *place) {
    if (folder && (mkdir(place, 0755) || mount(folder, place, NULL, MS_BIND, NULL)))
        die(folder);
}

static void put_back(char *folder, const char *place) {
    if (!folder)
        return;
    make_folders(folder);
    if (mount(place, folder, NULL, MS_MOVE, NULL))
        die(folder);
}

/* The host's files, read-only but for the folder to keep, with fresh temporary folders. */
static void mount_root(char *show, char *keep) {
    if (mount("host", ROOT, "virtiofs", 0, NULL))
        die(ROOT);
    hold(show, "/show-held");
    hold(keep, "/keep-held");
    if (mount(NULL, ROOT, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
        die("read-only " ROOT);
    mount_new("proc", ROOT "/proc", NULL);
    mount_new("sysfs", ROOT "/sys", NULL);
    mount_new("debugfs", ROOT "/sys/kernel/debug", NULL);
    mount_new("devtmpfs", ROOT "/dev", NULL);
    mount_new("devpts", ROOT "/dev/pts", NULL);
    mount_new("tmpfs", ROOT "/dev/shm", "mode=1777");
    mount_new("tmpfs", ROOT "/run", "mode=755");
    mount_new("tmpfs", ROOT "/tmp", "mode=1777");
    put_back(show, "/show-held");
    put_back(keep, "/keep-held");
    if (chdir(ROOT) || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        die("chroot");
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
}

static void loopback_up(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
        die("lo");
    close(fd);
}

/* A port's node appears some time after its driver. */
static int open_port(const char *path) {
    for (int tries = 0; tries < 3000; tries++) {
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
            return fd;
        usleep(10000);
    }
    die(path);
    return -1;
}

static int run(const char *job) {
    int status = 0;
    int output = open_port(OUTPUT_PORT);
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        setsid();
        int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(input, 0);
        dup2(output, 1);
        dup2(output, 2);
        execle("/bin/sh", "sh", "-c", job, NULL, (char *[]){"HOME=/root", NULL});
        _exit(127);
    }
    close(output);
    for (pid_t ended; (ended = wait(&status)) != child;) /* orphans are ours to reap too */
        if (ended < 0 && errno != EINTR)
            die("wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    char *job = read_file("/job"), *show = read_file("/show"), *keep = read_file("/keep");
    if (!job)
        die("/job");
    load_modules();
    mount_root(show, keep);
    loopback_up();
    int port = open_port(STATUS_PORT);
    puts("init: running the job");
    int code = run(job);
    sync();
    dprintf(port, "%d\n", code);
    close(port);
    reboot(RB_AUTOBOOT);
    pause();
}

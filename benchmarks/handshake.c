/* The same exchange as handshake.py in C: one fd there over SOCK_SEQPACKET, an answer back.
   usage: handshake ROUNDS CPU_A CPU_B  → prints the median round trip in ns. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OFFER_BYTES = 80, ACK_BYTES = 28 };

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    long long x = *(const long long *)a, y = *(const long long *)b;
    return x < y ? -1 : x > y;
}

static ssize_t exchange(int sock, int sending, void *data, size_t size, int *fd) {
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    struct iovec part = {data, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
    }
    if (!sending) {
        ssize_t got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
        struct cmsghdr *header = fd ? CMSG_FIRSTHDR(&message) : NULL;
        if (header) memcpy(fd, CMSG_DATA(header), sizeof(int));
        return got;
    }
    if (fd) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), fd, sizeof(int));
    }
    return sendmsg(sock, &message, MSG_NOSIGNAL);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 10000, pair[2];
    char offer[OFFER_BYTES] = {1}, ack[ACK_BYTES] = {1};
    long long *times = calloc(rounds, sizeof *times);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return 1;
    if (fork() == 0) {
        close(pair[0]);
        pin(argc > 3 ? atoi(argv[3]) : 1);
        for (int fd = -1; exchange(pair[1], 0, offer, sizeof offer, &fd) > 0; fd = -1) {
            close(fd);
            exchange(pair[1], 1, ack, sizeof ack, NULL);
        }
        _exit(0);
    }
    close(pair[1]);
    pin(argc > 2 ? atoi(argv[2]) : 0);
    int memory = memfd_create("handshake", MFD_CLOEXEC);
    for (int i = 0; i < rounds; i++) {
        long long began = now_ns();
        exchange(pair[0], 1, offer, sizeof offer, &memory);
        exchange(pair[0], 0, ack, sizeof ack, NULL);
        times[i] = now_ns() - began;
    }
    close(pair[0]);
    wait(NULL);
    qsort(times, rounds, sizeof *times, by_value);
    printf("%lld\n", times[rounds / 2]);
    return 0;
}

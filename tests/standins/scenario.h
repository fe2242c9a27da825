/* The scenario of a stand-in library: "key = value" lines of the file that CUDADOCTOR_STANDIN names.

   <function> = <code> | hang | crash       what a function does; gpu3.<function> for one GPU only
   <function> = ones | zeros | noise | open it succeeds, and all that it answers is garbage;
                                            open: its texts fill the buffer and have no end
   after = <calls> <code> | hang | crash    what everything does once so many calls were answered;
                                            gpu3.after counts the calls about one GPU only
   <key> = <value>                          what it answers; gpu3.<key> for one GPU only */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 1024
static char keys[MOST][96], values[MOST][160];
static int known = -1;

static void read_scenario(void) {
    const char *path = getenv("CUDADOCTOR_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[320];
    known = 0;
    while (file && known < MOST && fgets(line, sizeof line, file))
        if (sscanf(line, " %95[^= ] = %159[^\n]", keys[known], values[known]) == 2) known++;
    if (file) fclose(file);
}

static const char *find(const char *key) {
    if (known < 0) read_scenario();
    for (int i = 0; i < known; i++)
        if (!strcmp(keys[i], key)) return values[i];
    return NULL;
}

/* Not 0 while a function answers with garbage: 1 ones, 2 zeros, 3 noise, 4 open. */
static int garbage;
static const char *const GARBAGE[] = {"", "ones", "zeros", "noise", "open"};

static const char *scenario_of(int gpu, const char *key) {
    char one[128];
    const char *found = NULL;
    if (gpu >= 0) {
        snprintf(one, sizeof one, "gpu%d.%s", gpu, key);
        found = find(one);
    }
    return found ? found : find(key);
}

static const char *text_of(int gpu, const char *key, const char *usual) {
    static const char *const words[] = {"", "\xff\xff\xff\xff", "", "\x1b[31m\xde\xad\n$(x)", ""};
    const char *found = scenario_of(gpu, key);
    if (garbage) return words[garbage];
    return found ? found : usual;
}

static long long number_of(int gpu, const char *key, long long usual) {
    static const long long numbers[] = {0, -1, 0, 0x5eadbeefdeadbeef, 0x7fffffffffffffff};
    const char *found = scenario_of(gpu, key);
    if (garbage) return numbers[garbage];
    return found ? strtoll(found, NULL, 0) : usual;
}

static int done(const char *does) {
    if (!strcmp(does, "hang")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        for (;;) pause();
    }
    if (!strcmp(does, "crash")) *(volatile int *)0 = 1;
    for (int kind = 1; kind < 5; kind++)
        if (!strcmp(does, GARBAGE[kind])) garbage = kind;
    return garbage ? 0 : (int)strtol(does, NULL, 0);
}

/* Whatever is asked after so many calls meets a device that is gone; 0 where it is still there. */
static int gone(int gpu) {
    static long calls[257];
    char key[32] = "after", *does;
    if (gpu >= 0) snprintf(key, sizeof key, "gpu%d.after", gpu);
    long *asked = &calls[gpu >= 0 && gpu < 256 ? gpu : 256];
    const char *after = find(key);
    if (!after || ++*asked <= strtol(after, &does, 0)) return 0;
    return done(does + strspn(does, " "));
}

/* What a function does before it answers: its code, or it never comes back. */
static int act(int gpu, const char *function) {
    garbage = 0;
    int code = gone(gpu);
    const char *does = scenario_of(gpu, function);
    return code || !does ? code : done(does);
}

/* The scenario of a stand-in library: "key = value" lines of the file that CUDADOCTOR_STANDIN names.

   <function> = <code> | hang | crash       what a function does; gpu3.<function> for one GPU only
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

static const char *text_of(int gpu, const char *key, const char *usual) {
    char one[128];
    const char *found = NULL;
    if (gpu >= 0) {
        snprintf(one, sizeof one, "gpu%d.%s", gpu, key);
        found = find(one);
    }
    if (!found) found = find(key);
    return found ? found : usual;
}

static long long number_of(int gpu, const char *key, long long usual) {
    const char *found = text_of(gpu, key, NULL);
    return found ? strtoll(found, NULL, 0) : usual;
}

/* What a function does before it answers: its code, or it never comes back. */
static int act(int gpu, const char *function) {
    const char *does = text_of(gpu, function, NULL);
    if (!does) return 0;
    if (!strcmp(does, "hang")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        for (;;) pause();
    }
    if (!strcmp(does, "crash")) *(volatile int *)0 = 1;
    return (int)strtol(does, NULL, 0);
}

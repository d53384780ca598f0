#include "check.h"

#include <stdio.h>
#include <string.h>

static int failed = 0;
static uint64_t state = 1;

void check(int holds, const char* what, const char* file, int line) {
    if (holds) return;
    ++failed;
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
}

void check_status(flexc_status got, flexc_status expected, flexc_error** from, const char* text,
                  const char* file, int line) {
    flexc_error* error = *from;
    const char* message = flexc_error_message(error);
    const char* name = flexc_status_name(got);
    if (got != expected) {
        ++failed;
        fprintf(stderr, "%s:%d: status %d (%s): %s\n", file, line, (int)got, name ? name : "?",
                message);
    }
    check((error == NULL) == (got == FLEXC_OK), "an error comes with a failure", file, line);
    check(flexc_error_status(error) == got, "the error has the status", file, line);
    if (text != NULL && strstr(message, text) == NULL) {
        ++failed;
        fprintf(stderr, "%s:%d: expected '%s' in: %s\n", file, line, text, message);
    }
    flexc_error_free(error);
    *from = NULL;
}

int failures(void) { return failed; }

void seed_random(uint64_t seed) { state = seed * 2 + 1; }

float random_float(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 40) / (double)(1 << 23) - 1.0);
}

/* test_c FOLDER: every function of flexc_c.h and flexc_distributed_c.h, with errors. Files go to
 * FOLDER, which exists. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"

int main(int count, char** arguments) {
    const char* given = getenv("FLEXC_TEST_SEED");
    const uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    if (count != 2) {
        fprintf(stderr, "usage: test_c FOLDER\n");
        return 2;
    }
    seed_random(seed);
    test_kernels();
    test_layouts();
    test_ranks();
    test_masks();
    test_tools(arguments[1]);
    test_examples(arguments[1]);
    if (failures() != 0)
        fprintf(stderr, "%d failures with FLEXC_TEST_SEED=%llu\n", failures(),
                (unsigned long long)seed);
    return failures() == 0 ? 0 : 1;
}

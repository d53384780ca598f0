/* What the C tests share: checks that go on, errors that free themselves, and random numbers. */
#ifndef FLEXC_TESTS_C_CHECK_H
#define FLEXC_TESTS_C_CHECK_H

#include <stdint.h>

#include "flexc/flexc_c.h"

void check(int holds, const char* what, const char* file, int line);
#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)

/* The call's status is this, and its error, which is freed, says so and has `text` in it. */
void check_status(flexc_status got, flexc_status expected, flexc_error** from, const char* text,
                  const char* file, int line);
#define CHECK_OK(call) check_status((call), FLEXC_OK, &error, 0, __FILE__, __LINE__)
#define CHECK_REFUSED(call, status, text)                                                          \
    check_status((call), (status), &error, (text), __FILE__, __LINE__)
/* A call that gets NULL where it needs something. */
#define CHECK_NULL(call, name) CHECK_REFUSED(call, FLEXC_ERROR_INVALID_OPTION, name " is NULL")

int failures(void);
void seed_random(uint64_t seed);
float random_float(void); /* between -1 and 1 */

void test_kernels(void);
void test_layouts(void);
void test_ranks(void);
void test_masks(void);
void test_tools(const char* folder);
void test_examples(const char* folder);

#endif

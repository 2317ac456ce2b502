/*
 * check.h - the checks of the unit tests.
 *
 * A failed check prints file, line and both values, and the test goes on.
 * main() ends with `return check_done("name");`.
 */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <string.h>

static int check_n;             /* checks made                              */
static int check_failed;        /* of them, failed                          */

#define CHECK(cond)                                                         \
    do {                                                                    \
        check_n++;                                                          \
        if (!(cond)) {                                                      \
            check_failed++;                                                 \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #cond);               \
        }                                                                   \
    } while (0)

#define CHECK_EQ_INT(a, b)                                                  \
    do {                                                                    \
        long long check_a = (long long) (a), check_b = (long long) (b);     \
                                                                            \
        check_n++;                                                          \
        if (check_a != check_b) {                                           \
            check_failed++;                                                 \
            printf("%s:%d: %s is %lld, not %s = %lld\n", __FILE__,          \
                   __LINE__, #a, check_a, #b, check_b);                     \
        }                                                                   \
    } while (0)

#define CHECK_EQ_STR(a, b)                                                  \
    do {                                                                    \
        const char *check_a = (a), *check_b = (b);                          \
                                                                            \
        check_n++;                                                          \
        if (strcmp(check_a, check_b) != 0) {                                \
            check_failed++;                                                 \
            printf("%s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__, \
                   #a, check_a, check_b);                                   \
        }                                                                   \
    } while (0)

static inline int
check_done(const char *name)
{
    if (check_failed != 0) {
        printf("%s: %d of %d checks failed\n", name, check_failed, check_n);
        return 1;
    }
    printf("%s: %d checks passed\n", name, check_n);
    return 0;
}

#endif

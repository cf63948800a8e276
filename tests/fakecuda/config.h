/* The double's switches: environment variables named FAKECUDA_..., described in README.md. */
#ifndef FAKECUDA_CONFIG_H
#define FAKECUDA_CONFIG_H

#include <stdbool.h>

enum { BEHAVE_OK = 0, BEHAVE_ZEROS = -1 };

/* The text of a switch for one device (-1: no device in particular), or NULL where neither the environment nor the
 * preset has it. FAKECUDA_NAME_DEV1 wins over FAKECUDA_NAME, which wins over the preset. */
const char *option(const char *name, int device);

/* The number of a switch, or fallback where it is absent. */
long long option_number(const char *name, int device, long long fallback);

/* Carries out a behaviour: `crash` and `hang` do not return, `slow:MS` sleeps; the result is BEHAVE_OK,
 * BEHAVE_ZEROS or a CUresult. `call` names the function for what is said on stderr. */
int behave(const char *behaviour, const char *call);

/* False, and a line on stderr for each, where the environment has a FAKECUDA_ name that means nothing. */
bool options_are_known(void);

#endif

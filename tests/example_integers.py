"""Number theory of the example set, by trying every integer in range; see example_algebra for the form."""

from itertools import product
from math import gcd, isqrt, lcm

import sympy as sp

Facts = tuple[object, dict[str, list[object]]]


def ninety_one() -> Facts:
    def good(modulus: int, stop: int, start: int = 1) -> list[int]:
        return [n for n in range(start, stop) if (n * n + n + 1) % modulus == 0]

    full, rest = divmod(2025, 91)
    return len(good(91, 2026)), {
        "1": [good(7, 8) == [2, 4], "$n\\equiv 2$ or $4 \\pmod 7$"],
        "2": [good(13, 14) == [3, 9], "$n\\equiv 3$ or $9 \\pmod{13}$"],
        "3": good(91, 92),
        "4": [f"2025={full}\\cdot 91+{rest}", full * 91],
        "5": [len(good(91, full * 91 + 1))],
        "6": [len(good(91, 2026, 2003)) == 2, *good(91, 2026, 2003)],
    }


def lcm_square_gcd() -> Facts:
    target = 10800
    divisors = [d for d in range(1, target + 1) if target % d == 0]

    def exponents(top: int) -> int:
        return sum(max(i, j) == top and min(i, j) % 2 == 0 for i, j in product(range(top + 1), repeat=2))

    pairs = sum(lcm(a, b) == target and isqrt(gcd(a, b)) ** 2 == gcd(a, b) for a, b in product(divisors, repeat=2))
    return pairs, {
        "1": [target == 2**4 * 3**3 * 5**2],
        "2": [pairs == exponents(4) * exponents(3) * exponents(2)],
        "3": [exponents(4)],
        "4": [exponents(3)],
        "5": [exponents(2)],
    }


def reversal_by_396() -> Facts:
    numbers = [n for n in range(100, 1000) if n % 9 == 0 and n - int(str(n)[::-1]) == 396]
    digits = [(n // 100, n // 10 % 10, n % 10) for n in range(100, 1000)]
    rule = [100 * a + 10 * b + c for a, b, c in digits if a == c + 4 and c <= 5 and (2 * c + 4 + b) % 9 == 0]
    low, high = [n for n in numbers if n % 10 <= 2], [n for n in numbers if n % 10 >= 3]
    return sum(numbers), {
        "1": [all(n - int(str(n)[::-1]) == 99 * (n // 100 - n % 10) for n in range(100, 1000))],
        "2": [all(n // 100 == n % 10 + 4 for n in numbers), {n % 10 for n in numbers} == set(range(6))],
        "3": [all((n % 9 == 0) == (sum(map(int, str(n))) % 9 == 0) for n in range(100, 1000))],
        "4": [rule == numbers],
        "5": [*low, sum(low), len(low) == 3],
        "6": [*high, sum(high), len(high) == 3],
    }


def shifted_factors() -> Facts:
    pairs = [(x, y) for x in range(1, 200) for y in range(1, 200) if x * y + 5 * x + 7 * y == 1000]
    divisors = [d for d in range(1, 1036) if 1035 % d == 0]
    return sum(x for x, _ in pairs), {
        "1": [all((x + 7) * (y + 5) == 1035 for x, y in pairs)],
        "2": [",".join(map(str, divisors)), 1035 == 3**2 * 5 * 23],
        "3": [f"{1 + 7}\\le x+7\\le {1035 // 6}"],
        "4": [",".join(str(x + 7) for x, _ in pairs)],
        "5": [",".join(str(x) for x, _ in pairs)],
    }


def self_powers_mod_five() -> Facts:
    good = [n for n in range(1, 771) if pow(n, n, 5) == 1]
    classes = {n % 20 for n in good}
    later = [n for n in good if n > 760]
    return len(good), {
        "1": [all(pow(n, n, 5) == pow(n + 20, n + 20, 5) for n in range(1, 400))],
        "2": [",".join(str(r) for r in sorted(classes) if r % 5 == 1)],
        "3": [" and ".join(f"${r}$" for r in sorted(classes) if r % 5 in (2, 3))],
        "4": [" and ".join(f"${r}$" for r in sorted(classes) if r % 5 == 4)],
        "5": [",".join(map(str, sorted(classes))), len(classes) == 8],
        "6": [len(good) - len(later)],
        "7": [",".join(map(str, later))],
    }


def positive_quotients() -> Facts:
    """Beyond the range searched, n + 2 exceeds the remainder 11 and cannot divide it."""
    whole = {n: (n**3 - 3) // (n + 2) for n in range(-100, 101) if n != -2 and (n**3 - 3) % (n + 2) == 0}
    n = sp.symbols("n")
    return {m for m, value in whole.items() if value > 0}, {
        "1": [sp.expand((n + 2) * (n**2 - 2 * n + 4) - 11 - n**3 + 3) == 0],
        "2": [sorted(whole) == [m for m in range(-100, 101) if m != -2 and 11 % (m + 2) == 0]],
        "3": [len(whole) == 4, *(f"n={m}$" for m in whole)],
        "4": [sp.simplify((n**3 - 3) / (n + 2) - (n**2 - 2 * n + 4 - 11 / (n + 2))) == 0],
        "5": [f"n=-13$ the quotient is ${whole[-13]}$", f"n=-3$ it is ${whole[-3]}$"],
        "6": [f"n=-1$ the quotient is ${whole[-1]}$", f"n=9$ it is ${whole[9]}$"],
    }
